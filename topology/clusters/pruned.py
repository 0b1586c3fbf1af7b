"""Clusters that have lost workers, or the way from one worker to another."""

import itertools
from collections.abc import Collection, Sequence
from fractions import Fraction

from topology.clusters.cluster import Cluster, Ends, Link


def remove(
  cluster: Cluster,
  *,
  workers: Collection[str] = (),
  pairs: Collection[Ends] = (),
) -> Cluster:
  """Returns what is left of a cluster, for packing again.

  A worker that is lost takes all its links with it.  A pair (sender, receiver)
  that is lost cannot talk any more; other workers may still pass on what the
  one has for the other.  As switches do not know from whom things come, the
  sender gets, instead of its ways into them, a link to each receiver's way in
  that is left, as wide as the widest way there was: these share what the sender
  can send and what the receiver can receive.  Links between switches, which
  others share with it, are not seen by that sender any more.

  Args:
    cluster: Of before.
    workers: Ids of those that are lost.
    pairs: Ordered pairs of ids of workers.

  Raises:
    ValueError: If an id is not one of a worker, or those that are left cannot
      reach each other.
  """
  for name in (*workers, *itertools.chain.from_iterable(pairs)):
    if name not in cluster.rank:
      raise ValueError(
        f'workers: expected some of {cluster.workers}, got {name!r}.'
      )
  kept = [worker for worker in cluster.workers if worker not in workers]
  if not kept:
    raise ValueError('workers: expected some to be left, got all of them.')
  links = [link for link in cluster.links if not {*link[:2]} & {*workers}]
  lost = [pair for pair in pairs if not {*pair} & {*workers}]
  way_out, way_in = _choose_suffixes(cluster)
  for sender in dict.fromkeys(src for src, _ in lost):
    barred = {dst for src, dst in lost if src == sender}
    links = _bar_pairs(links, kept, sender, barred, way_out, way_in)
  ends = (end for link in links for end in link[:2])
  before = [node for node in cluster.nodes if node not in workers]
  nodes = dict.fromkeys([*before, *ends])
  return Cluster(tuple(nodes), tuple(kept), tuple(links))


def _choose_suffixes(cluster: Cluster) -> tuple[str, str]:
  """Returns what makes new ids of nodes of those of workers."""
  ends = '.out', '.in'
  while {w + end for w in cluster.workers for end in ends} & {*cluster.nodes}:
    ends = f'{ends[0]}*', f'{ends[1]}*'
  return ends


def _bar_pairs(
  links: Sequence[Link],
  workers: Sequence[str],
  sender: str,
  barred: Collection[str],
  way_out: str,
  way_in: str,
) -> list[Link]:
  """The links, but for those by which a worker reaches some others."""
  out = f'{sender}{way_out}'
  width = _find_widest(links, workers, sender)
  reached = [each for each in workers if each in width and each not in barred]
  kept = []
  up_GBps = Fraction(0)
  down_GBps = dict.fromkeys(reached, Fraction(0))
  for src, dst, GBps in links:
    if src == sender and dst in workers:
      if dst not in barred:
        kept.append(Link(src, dst, GBps))
    elif src == sender:
      up_GBps += GBps
    elif dst in reached and src not in (*workers, f'{dst}{way_in}'):
      down_GBps[dst] += GBps
      kept.append(Link(src, f'{dst}{way_in}', GBps))
    else:
      kept.append(Link(src, dst, GBps))
  if not up_GBps or not reached:
    return kept
  ways = [Link(out, f'{each}{way_in}', width[each]) for each in reached]
  ins = [Link(f'{w}{way_in}', w, GBps) for w, GBps in down_GBps.items() if GBps]
  return [*kept, Link(sender, out, up_GBps), *ways, *ins]


def _find_widest(
  links: Sequence[Link], workers: Sequence[str], sender: str
) -> dict[str, Fraction]:
  """Returns the width of the widest way over switches, by worker reached."""
  found: dict[str, Fraction] = {}
  frontier = {
    dst: GBps
    for src, dst, GBps in links
    if src == sender and dst not in workers
  }
  while frontier:
    node = max(frontier, key=lambda each: frontier[each])
    found[node] = frontier.pop(node)
    for src, dst, GBps in links if node not in workers else ():
      if src == node and dst not in found and dst != sender:
        width = min(found[node], GBps)
        frontier[dst] = max(frontier.get(dst, width), width)
  return {node: width for node, width in found.items() if node in workers}
