"""Groups of hosts behind links that they share, found in measured rates.

Hosts of a group reach each other better than others when all send to all, so
that clusters of hosts in that test are suspects; a test of its own, in which a
suspect's hosts all send to others, and one in which they all receive, show what
its link carries.  It is there if that is less than the rest of the model
explains, transfers sharing every limit equally (max-min fairness, Bertsekas and
Gallager, Data Networks, section 6.5.2).
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from topology.clusters import measured
from topology.clusters.measured import Ends, Rates, Test

Hosts = tuple[int, ...]  # Ascending.
_GB = 10**9


def compute_fair_Bps(rates: Rates, pairs: Iterable[Ends]) -> dict[Ends, float]:
  """Returns the max-min fair rates of transfers that go on at the same time.

  The limit that leaves its transfers the least is filled, again and again;
  with T transfers and L limits this takes time in L^2 + L T.

  Args:
    rates: Of the hosts.
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
  """Returns sets of hosts that reach each other better than others.

  Of any two, one is within the other, or they have no host in common; larger
  ones come first.  What counts is how much a pair got of its fair share, the
  geometric mean of both ways; clusters are merged by the highest average, and a
  suspect is one that merged at a value of which 1 - twice the tolerance is
  above that at which it was merged with others.  Of two that are all hosts
  together, only the smaller one is named: their links would be one.

  Args:
    test: In which all hosts send to all others.
    rates: Of the hosts; those of pairs and groups do not count.
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
  """Returns transfers that fill the link of a group: out of it, and into it.

  Every host of the group has one, and every other one, the fastest senders with
  the fastest receivers; the smaller side has several each.

  Args:
    group: The hosts behind the link.
    rates: Of the hosts.
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
  """Returns transfers between hosts that reach each other best, one for each.

  They load hosts, but hardly the links that groups share: if not even they go
  on at once at their rates, then something else is short.

  Args:
    test: In which all hosts send to all others.
    rates: Of the hosts.
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
  """Returns the suspects behind a link that matters.

  It does if its rate, the best that any test has shown, leaves transfers of
  `choose_loads` less than 1 - twice the tolerance of what the rates of hosts, pairs
  that were measured alone, and other groups let expect.  Larger suspects are
  looked at first, and again in the end, since smaller ones may explain them.

  Args:
    suspected: The suspects, the larger ones first.
    tests: All, those of the `choose_loads` of each suspect among them.
    hosts: How many there are.
    tolerance: Relative error of the measurements.
  """

  def matters(group: Hosts, others: Sequence[Hosts]) -> bool:
    without, within = (
      _rates(tests, groups, hosts=hosts, tolerance=tolerance)
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
  """Returns whether a test of `choose_control` has carried what it should.

  If not, there is no telling what groups are: hosts that share a machine, for
  example, are all slow when many of them send.

  Args:
    control: The test.
    groups: Hosts behind shared links.
    tests: All tests.
    hosts: How many there are.
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
  """Returns rates, of pairs only those that were measured alone."""
  rates = measured.fit(tests, hosts=hosts, tolerance=tolerance, groups=groups)
  alone = {pair for test in tests if len(test) == 1 for pair in test}
  return rates._replace(
    pairs_GBps={p: GBps for p, GBps in rates.pairs_GBps.items() if p in alone}
  )


def _total(rates: Rates, pairs: Iterable[Ends]) -> float:
  return sum(compute_fair_Bps(rates, pairs).values())


def _measure_kinship(test: Test, rates: Rates) -> dict[Ends, float]:
  """Returns how much of its fair share each two hosts got, of both ways."""
  fair = compute_fair_Bps(rates._replace(pairs_GBps={}, groups=()), test)
  share = {pair: rate / fair[pair] for pair, rate in test.items()}
  return {(i, j): math.sqrt(share[i, j] * share[j, i]) for i, j in share}


def _merge_clusters(
  kinship: Mapping[Ends, float], hosts: int
) -> Iterator[tuple[list[Hosts], float]]:
  """Yields clusters that merge, the smaller one first, and at what kinship.

  That is the mean of all between them, and it falls (average linkage); in time
  of the order of hosts^3.
  """
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
