"""Removal of workers, and of ways between workers, from a cluster.

Used to pack again after workers have left or links between two of them failed.
"""

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
  """Returns the cluster without some workers and some ways between workers.

  A removed worker takes all its links with it.  A sender of a removed pair
  (sender, receiver) cannot send to that receiver directly; other workers may
  still relay its data.  As switches forward to all, the sender gets, instead of
  its links into switches, a link to the input of each remaining receiver, as
  wide as the widest way there: these links share the capacity out of the sender
  and the capacity into the receiver.  Links between switches no longer limit
  that sender.

  Args:
    workers: Ids of removed workers.
    pairs: Ordered pairs (sender, receiver) of ids of workers.

  Raises:
    ValueError: If an id is not that of a worker, or the remaining workers
      cannot reach each other.
  """
  for name in (*workers, *itertools.chain.from_iterable(pairs)):
    if name not in cluster.rank:
      raise ValueError(
        f'workers: expected some of {cluster.workers}, got {name!r}.'
      )
  removed = {*workers}
  kept = [worker for worker in cluster.workers if worker not in removed]
  if not kept:
    raise ValueError('workers: expected some to be left, got all of them.')
  links = [link for link in cluster.links if not {*link[:2]} & removed]
  lost = [pair for pair in pairs if not {*pair} & removed]
  way_out, way_in = _choose_suffixes(cluster)
  for sender in dict.fromkeys(src for src, _ in lost):
    barred = {dst for src, dst in lost if src == sender}
    links = _bar_pairs(links, kept, sender, barred, way_out, way_in)
  ends = (end for link in links for end in link[:2])
  before = [node for node in cluster.nodes if node not in removed]
  nodes = dict.fromkeys([*before, *ends])
  return Cluster(tuple(nodes), tuple(kept), tuple(links))


def _choose_suffixes(cluster: Cluster) -> tuple[str, str]:
  """Returns two suffixes that turn ids of workers into unused ids of nodes."""
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
  """Returns the links after removing a sender's ways to barred receivers."""
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
