"""Search for groups of hosts behind shared links, in measured rates.

When all hosts send to all, hosts of a group reach each other better than other
hosts: clusters of hosts in that test are suspected groups.  Two more tests, in
which all hosts of a suspected group send to others or receive from them, load
its link.  The group is confirmed if the link carries less than the rest of the
model predicts, with max-min fair shares (Bertsekas and Gallager, Data Networks,
section 6.5.2).
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from topology.clusters import measured
from topology.clusters.measured import Ends, Rates, Test

Hosts = tuple[int, ...]  # Ascending.
_GB = 10**9


def compute_fair_Bps(rates: Rates, pairs: Iterable[Ends]) -> dict[Ends, float]:
  """Returns the max-min fair rates of simultaneous transfers, bytes per second.

  Repeatedly fills the limit with the smallest share per transfer.  O(L^2 + L T)
  for T transfers and L limits.

  Args:
    pairs: Sender and receiver of each transfer.
  """
  limits = {pair: rates.limits(*pair) for pair in pairs}
  left: dict[Hashable, float] = {}
  waiting: dict[Hashable, set[Ends]] = {}
  for pair, own in limits.items():
    for name, GBps in own.items():
      left[name] = float(GBps * _GB)
      waiting.setdefault(name, set()).add(pair)
  fair: dict[Ends, float] = {}
  while waiting:
    fullest = min(waiting, key=lambda name: left[name] / len(waiting[name]))
    share = left[fullest] / len(waiting[fullest])
    for pair in [*waiting[fullest]]:
      fair[pair] = share
      for name in limits[pair]:
        left[name] = max(0.0, left[name] - share)
        waiting[name].discard(pair)
        if not waiting[name]:
          del waiting[name]
  return fair


def find_suspects(test: Test, rates: Rates, *, tolerance: float) -> list[Hosts]:
  """Returns sets of hosts that reach each other better than other hosts.

  Of any two sets, one is within the other, or they are disjoint; larger sets
  come first.  The kinship of two hosts is the geometric mean of their shares of
  fair rates in both directions.  Clusters are merged by the highest mean
  kinship, and a cluster is suspected if its own kinship times 1 - 2 * tolerance
  exceeds that of its merger with others.  If two clusters make up all hosts,
  only the smaller one is suspected: both would have the same link.

  Args:
    test: Test in which all hosts send to all others.
    rates: Rates of the hosts; those of pairs and groups are ignored.
    tolerance: Relative error of the measurements.
  """
  hosts = len(rates.up_GBps)
  formed: dict[Hosts, float] = {}
  found: list[Hosts] = []
  for parts, value in _merge_clusters(_measure_kinship(test, rates), hosts):
    whole = tuple(sorted(parts[0] + parts[1]))
    formed[whole] = value
    if len(whole) == hosts:
      parts = parts[:1]
    found += [
      part
      for part in parts
      if len(part) > 1 and (1 - 2 * tolerance) * formed[part] > value
    ]
  return sorted(found, key=lambda part: (-len(part), part))


def choose_loads(
  group: Sequence[int], rates: Rates
) -> tuple[tuple[Ends, ...], tuple[Ends, ...]]:
  """Returns transfers that load the link of a group: out of it, and into it.

  Every host has a transfer, the fastest senders with the fastest receivers;
  hosts of the smaller side have several.
  """
  others = [host for host in range(len(rates.up_GBps)) if host not in group]
  ways = []
  for senders, receivers in ((group, others), (others, group)):
    first = sorted(senders, key=lambda host: -rates.up_GBps[host])
    last = sorted(receivers, key=lambda host: -rates.down_GBps[host])
    ways.append(
      tuple(
        (first[k % len(first)], last[k % len(last)])
        for k in range(max(len(first), len(last)))
      )
    )
  return ways[0], ways[1]


def choose_control(test: Test, rates: Rates) -> tuple[Ends, ...]:
  """Returns transfers between hosts that reach each other best, one per host.

  They load hosts, but hardly the links of groups: if these transfers fall short
  of their rates, there is a limit other than links of groups.

  Args:
    test: Test in which all hosts send to all others.
  """
  kinship = _measure_kinship(test, rates)
  free = {*range(len(rates.up_GBps))}
  chosen: list[Ends] = []
  for pair in sorted(kinship, key=lambda pair: -kinship[pair]):
    if free >= {*pair}:
      chosen.append(pair)
      free -= {*pair}
  return tuple(chosen)


def confirm_groups(
  suspected: Sequence[Hosts],
  tests: Sequence[Test],
  *,
  hosts: int,
  tolerance: float,
) -> list[Hosts]:
  """Returns the suspected groups whose link limits transfers.

  The link limits transfers if its best measured rate leaves those of
  `choose_loads` less than 1 - 2 * tolerance of the rate that hosts, pairs that
  were measured alone, and other groups allow.  Larger groups are checked first,
  and again at the end, as smaller groups may explain them.

  Args:
    suspected: Suspected groups, the larger ones first.
    tests: All tests, with those of `choose_loads` for each suspected group.
    tolerance: Relative error of the measurements.
  """
  alone = _rates(tests, (), hosts=hosts, tolerance=tolerance)
  measured_groups = measured.measure_groups(
    tests, suspected, tolerance=tolerance
  )
  links = dict(zip(suspected, measured_groups, strict=True))

  def matters(group: Hosts, others: Sequence[Hosts]) -> bool:
    without, within = (
      alone._replace(groups=tuple(links[each] for each in groups))
      for groups in (others, [*others, group])
    )
    return any(
      _total(within, pairs) < (1 - 2 * tolerance) * _total(without, pairs)
      for pairs in choose_loads(group, without)
    )

  chosen: list[Hosts] = []
  for group in suspected:
    if matters(group, chosen):
      chosen.append(group)
  for group in [*chosen]:
    rest = [other for other in chosen if other != group]
    if not matters(group, rest):
      chosen = rest
  return chosen


def explains_control(
  control: Test,
  groups: Sequence[Hosts],
  tests: Sequence[Test],
  *,
  hosts: int,
  tolerance: float,
) -> bool:
  """Returns whether the groups explain the rates of a control test.

  If not, no groups can be inferred: for example, hosts that share a machine are
  all slow when many of them send.

  Args:
    control: Test of the transfers of `choose_control`.
    groups: Hosts behind shared links.
    tests: All tests.
    tolerance: Relative error of the measurements.
  """
  rates = _rates(tests, groups, hosts=hosts, tolerance=tolerance)
  want = (1 - 2 * tolerance) * _total(rates, control)
  return sum(control.values()) >= want


def _rates(
  tests: Sequence[Test],
  groups: Sequence[Hosts],
  *,
  hosts: int,
  tolerance: float,
) -> Rates:
  """Returns the rates, with those of pairs only if measured alone."""
  rates = measured.fit(tests, hosts=hosts, tolerance=tolerance, groups=groups)
  alone = {pair for test in tests if len(test) == 1 for pair in test}
  return rates._replace(
    pairs_GBps={p: GBps for p, GBps in rates.pairs_GBps.items() if p in alone}
  )


def _total(rates: Rates, pairs: Iterable[Ends]) -> float:
  return sum(compute_fair_Bps(rates, pairs).values())


def _measure_kinship(test: Test, rates: Rates) -> dict[Ends, float]:
  """Returns, for each two hosts, their mean share of fair rates."""
  fair = compute_fair_Bps(rates._replace(pairs_GBps={}, groups=()), test)
  share = {pair: rate / fair[pair] for pair, rate in test.items()}
  return {(i, j): math.sqrt(share[i, j] * share[j, i]) for i, j in share}


def _merge_clusters(
  kinship: Mapping[Ends, float], hosts: int
) -> Iterator[tuple[list[Hosts], float]]:
  """Yields pairs of clusters that merge, the smaller first; their kinship."""
  # Average linkage: the kinship of two clusters is the mean over their pairs of
  # hosts, and decreases from merger to merger.  O(hosts^3).
  clusters: list[Hosts] = [(host,) for host in range(hosts)]
  sums: dict[tuple[Hosts, Hosts], float] = {}
  for (i, j), value in kinship.items():
    sums[(i,), (j,)] = value
  while len(clusters) > 1:
    mean = {both: sums[both] / len(both[0]) / len(both[1]) for both in sums}
    parts = max(mean, key=mean.__getitem__)
    yield sorted(parts, key=lambda part: (len(part), part)), mean[parts]
    clusters = [each for each in clusters if each not in parts]
    whole = tuple(sorted(parts[0] + parts[1]))
    joined = {
      each: sum(sums[part, each] for part in parts) for each in clusters
    }
    sums = {both: sums[both] for both in sums if not {*both} & {*parts}}
    for each, both in joined.items():
      sums[whole, each] = sums[each, whole] = both
    clusters.append(whole)
