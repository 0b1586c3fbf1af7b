"""Tests for cluster.network on random schedules.

They are run by an independent simulation too, which is slow and simple, and by
networks that are saved half-way.
"""

import contextlib
import math
import pickle
import random

from absl.testing import absltest, parameterized

from tests.support import networks

INF = math.inf


class OracleTest(parameterized.TestCase):
  """Random schedules against a slow simulator and what fairness means."""

  @parameterized.parameters(range(20))
  def test_arrivals_are_those_of_the_slow_simulator(self, group):
    for seed in range(20 * group, 20 * group + 20):
      links, schedule = _scenario(seed)

      times = _replay(networks.make(**links), schedule)

      expected = _simulate(links, schedule)
      self.assertEqual(times.keys(), expected.keys())
      for flow, time in times.items():
        self.assertAlmostEqual(
          time, expected[flow], delta=1e-9 * max(1.0, time), msg=f'seed {seed}'
        )

  @parameterized.parameters(range(10))
  def test_weighted_arrivals_are_those_of_the_slow_simulator(self, group):
    for seed in range(20 * group, 20 * group + 20):
      links, schedule = _scenario(seed)
      weights = random.Random(seed)
      schedule = [
        (*step, weights.choice([0.25, 1.0, 1.5, 6.0]))
        if len(step) == 4
        else step
        for step in schedule
      ]

      times = _replay(networks.make(**links), schedule)

      expected = _simulate(links, schedule)
      self.assertEqual(times.keys(), expected.keys())
      for flow, time in times.items():
        self.assertAlmostEqual(
          time, expected[flow], delta=1e-9 * max(1.0, time), msg=f'seed {seed}'
        )

  @parameterized.parameters(range(10))
  def test_rates_are_max_min_fair(self, group):
    for seed in range(20 * group, 20 * group + 20):
      links, schedule = _scenario(seed)
      pairs = [step[1:3] for step in schedule if len(step) == 4]
      flows = dict(enumerate(pair for pair in pairs if pair[0] != pair[1]))
      rates = _rates(links, flows)
      self._assert_max_min(links, flows, rates)

      # With bytes for 3 s each, all drain together if these are the rates.
      net = networks.make(up=links['up'], down=links['down'])
      for flow, ends in flows.items():
        net.start(0.0, *ends, 3 * rates[flow] if rates[flow] < INF else 1.0)

      for flow, time in networks.arrivals(net).items():
        expected = 3.0 if rates[flow] < INF else 0.0
        self.assertAlmostEqual(time, expected, delta=1e-9, msg=f'seed {seed}')

  def _assert_max_min(self, links, flows, rates):
    """Each flow has a full link on which no flow is faster than it."""
    users = {}
    for flow, (src, dst) in flows.items():
      users.setdefault(('up', src), []).append(flow)
      users.setdefault(('down', dst), []).append(flow)
    for flow, (src, dst) in flows.items():
      held = rates[flow] == INF
      for side, host in (('up', src), ('down', dst)):
        on_link = [rates[other] for other in users[side, host]]
        capacity = links[side][host]
        self.assertLessEqual(sum(on_link), capacity * (1 + 1e-9))
        full = sum(on_link) >= capacity * (1 - 1e-9)
        held |= full and max(on_link) <= rates[flow] * (1 + 1e-9)
      self.assertTrue(held)


class StateTest(parameterized.TestCase):
  @parameterized.parameters(range(10))
  def test_a_restored_network_continues_as_the_saved_one(self, seed):
    links, schedule = _scenario(seed)
    middle = len(schedule) // 2

    straight = _replay(networks.make(**links), schedule)

    net = networks.make(**links)
    before = _replay(net, schedule[:middle], finish=False)
    restored = pickle.loads(pickle.dumps(net))
    after = _replay(restored, schedule[middle:])
    self.assertEqual(before | after, straight)

  @parameterized.parameters(range(10))
  def test_asking_for_the_next_time_changes_nothing(self, seed):
    links, schedule = _scenario(seed)

    times = _replay(networks.make(**links), schedule, ask=True)

    expected = _replay(networks.make(**links), schedule)
    self.assertEqual(times.keys(), expected.keys())
    for flow, time in times.items():
      self.assertAlmostEqual(time, expected[flow], delta=1e-9)


def _scenario(seed):
  """Hosts and a schedule: (time, src, dst, bytes) starts, (time, id) cancels.

  A start may have a weight as well.
  Round numbers make ties, many flows share one host in some, and the load goes
  from a few flows to all at once.
  """
  rng = random.Random(seed)
  hosts = rng.choice([2, 3, 4, 6, 10])
  star, round_numbers = rng.random() < 0.4, rng.random() < 0.7
  links = {'latency': [rng.choice([0, 0, rng.random()]) for _ in range(hosts)]}
  for side in ('up', 'down'):
    choices = [INF, 1.0, 1.0, 2.0, 3.0] if round_numbers else [0.5]
    links[side] = [
      rng.choice([*choices, rng.uniform(0.05, 5)]) for _ in range(hosts)
    ]
  pace = rng.choice([0.05, 0.3, 1.0])
  time, started, schedule = 0.0, 0, []
  for _ in range(rng.randrange(1, 70)):
    time += rng.choice([0, 1, 1]) * rng.expovariate(1 / pace)
    if started and rng.random() < 0.15:
      schedule.append((time, rng.randrange(started)))
      continue
    ends = [rng.randrange(hosts), rng.randrange(hosts)]
    if star:
      ends = rng.sample([0, rng.randrange(1, hosts)], 2)
    size = rng.choice([0.0, 1.0, 2.0, rng.uniform(0, 3)])
    schedule.append((time, *ends, size))
    started += 1
  return links, schedule


def _replay(net, schedule, finish=True, ask=False):
  """Runs a schedule; {flow: arrival time}."""
  times = {}
  last = -INF
  for time, *step in schedule:
    while (ask or time > last) and net.next_time() < time:
      now = net.next_time()
      times |= dict.fromkeys(net.advance(now), now)
    last = time
    if len(step) > 1:
      net.start(time, *step)
    else:
      with contextlib.suppress(ValueError):  # It may have gone already.
        net.cancel(time, *step)
  return times | (networks.arrivals(net) if finish else {})


def _simulate(links, schedule):
  """Returns the expected result of `_replay`: new rates at every event."""
  left, ends, weights, times = {}, {}, {}, {}
  now, started, steps = 0.0, 0, list(schedule)
  while left or steps:
    rates = _rates(links, {flow: ends[flow] for flow in left}, weights)
    needs = {
      flow: size / rates[flow] if rates[flow] < INF else 0.0
      for flow, size in left.items()
    }
    due = now + min(needs.values(), default=INF)
    then = min(due, steps[0][0]) if steps else due
    drained = [f for f in left if now + needs[f] <= then * (1 + 1e-13) + 1e-15]
    for flow in left:
      left[flow] -= min(rates[flow], 1e99) * (then - now)
    now = then
    for flow in drained:
      src, dst = ends[flow]
      latency = links['latency'][src] + links['latency'][dst]
      times[flow] = now + (latency if src != dst else 0.0)
      del left[flow]
    while steps and steps[0][0] <= now:
      _, *step = steps.pop(0)
      if len(step) > 1:
        left[started], ends[started] = step[2], step[:2]
        weights[started] = step[3] if len(step) == 4 else 1.0
        started += 1
      elif left.pop(step[0], None) is None and times.get(step[0], -1) >= now:
        del times[step[0]]
  return times


def _rates(links, flows, weights=None):
  """Progressive filling: all rates rise together until a link is full.

  In proportion to their weights, if they have any.
  """
  weights = weights or dict.fromkeys(flows, 1.0)
  room = {('up', host): c for host, c in enumerate(links['up'])}
  room |= {('down', host): c for host, c in enumerate(links['down'])}
  rates = {flow: INF for flow, (src, dst) in flows.items() if src == dst}
  while len(rates) < len(flows):
    users = {}
    for flow, (src, dst) in flows.items():
      if flow not in rates:
        users.setdefault(('up', src), []).append(flow)
        users.setdefault(('down', dst), []).append(flow)
    shares = {
      link: room[link] / sum(weights[flow] for flow in users[link])
      for link in users
    }
    level = min(shares.values())
    full = [link for link in users if shares[link] <= level * (1 + 1e-12)]
    for flow in {flow for link in full for flow in users[link]}:
      rates[flow] = level * weights[flow]
      if level < INF:
        src, dst = flows[flow]
        room['up', src] -= rates[flow]
        room['down', dst] -= rates[flow]
  return rates


if __name__ == '__main__':
  absltest.main()
