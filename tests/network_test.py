"""Tests for cluster.network."""

import contextlib
import copy
import itertools
import math
import pickle
import random
from unittest import mock

from absl.testing import absltest, parameterized

from cluster import network

INF = math.inf


class TimelineTest(parameterized.TestCase):
  """Timelines worked out by hand, and closed forms."""

  def test_flow_takes_its_size_over_the_slower_of_its_links(self):
    net = _network(up=[8.0, 1.0], down=[1.0, 5.0])

    net.start(2.0, 0, 1, 20.0)

    self.assertEqual(_arrivals(net), {0: 6.0})

  def test_flow_that_joins_halves_the_rate_until_it_has_drained(self):
    net = _network(up=[10.0, 1.0], down=[1.0, INF])

    net.start(0.0, 0, 1, 100.0)  # 40 bytes by 4, 40 more by 12, 20 by 14.
    net.start(4.0, 0, 1, 40.0)

    self.assertEqual(_arrivals(net), {0: 14.0, 1: 12.0})

  def test_what_a_slow_worker_leaves_goes_to_the_others(self):
    net = _network(up=[2.0, INF, INF, 1.0], down=[1.0, 1.0, 1.0, 10.0])

    net.start(0.0, 0, 3, 20.0)  # At 2 throughout.
    net.start(0.0, 1, 3, 40.0)  # At 4 until 5, then at 8.
    net.start(0.0, 2, 3, 20.0)  # At 4.

    self.assertEqual(_arrivals(net), {0: 10.0, 1: 7.5, 2: 5.0})

  def test_cap_binds_again_when_the_others_have_drained(self):
    net = _network(up=[4.0, INF, 1.0], down=[1.0, 1.0, 6.0])

    net.start(0.0, 0, 2, 14.0)  # At 3 until 2, then at 4.
    net.start(0.0, 1, 2, 6.0)

    self.assertEqual(_arrivals(net), {0: 4.0, 1: 2.0})

  def test_two_shared_links_hold_back_different_flows(self):
    net = _network(up=[6.0, INF, 1.0, 1.0], down=[1.0, 1.0, 4.0, INF])

    net.start(0.0, 0, 2, 20.0)  # Host 2 gives 2 to each of its two flows,
    net.start(0.0, 0, 3, 40.0)  # and so leaves 4 of host 0 for this one.
    net.start(0.0, 1, 2, 20.0)

    self.assertEqual(_arrivals(net), {0: 10.0, 1: 10.0, 2: 10.0})

  @parameterized.product(flows=[1, 2, 7, 64], to_one=[True, False])
  def test_equal_flows_of_one_link_each_take_their_number_of_times(
    self, flows, to_one
  ):
    net = _network(up=[3.0] * (flows + 1), down=[3.0] * (flows + 1))

    for host in range(flows):
      net.start(1.0, *((host, flows) if to_one else (flows, host)), 5.0)

    time = net.next_time()
    self.assertAlmostEqual(time, 1.0 + flows * 5.0 / 3.0, places=12)
    self.assertEqual(net.advance(time), list(range(flows)))

  @parameterized.parameters(1, 3, 16)
  def test_pushes_and_pulls_of_a_superstep_take_the_same_and_do_not_meet(
    self, workers
  ):
    size, bandwidth = 7.0, 2.0
    net = _network(up=[bandwidth] * (workers + 1), down=None)

    for worker in range(workers):
      net.start(0.0, workers, worker, size)
      net.start(0.0, worker, workers, size)

    times = set(_arrivals(net).values())
    self.assertEqual(times, {workers * size / bandwidth})

  def test_latency_of_both_hosts_delays_arrival_and_holds_no_link(self):
    net = _network(up=[2.0, 2.0], down=[2.0, 2.0], latency=[0.25, 5.0])

    net.start(0.0, 0, 1, 2.0)
    self.assertEqual(net.next_time(), 1.0)
    self.assertEqual(net.advance(1.0), [])
    net.start(1.0, 0, 1, 2.0)

    self.assertEqual(_arrivals(net), {0: 6.25, 1: 7.25})

  @parameterized.named_parameters(
    ('between_infinite_links', 0, 1, 1e9, 4.0 + 0.75),
    ('of_zero_bytes', 2, 0, 0.0, 4.0 + 1.5),
    ('inside_one_host', 2, 2, 1e9, 4.0),
  )
  def test_flow_takes_its_latency_only(self, src, dst, size, expected):
    net = _network(
      up=[INF, INF, 1.0], down=[INF, INF, 1.0], latency=[0.5, 0.25, 1.0]
    )

    net.start(4.0, src, dst, size)

    self.assertEqual(_arrivals(net), {0: expected})

  def test_flows_that_arrive_together_are_returned_by_id(self):
    net = _network(up=[INF] * 3, down=[INF] * 3, latency=[2.0, 1.0, 0.0])

    net.start(0.0, 0, 2, 1.0)
    net.start(1.0, 1, 2, 1.0)
    net.start(2.0, 2, 1, 0.0)
    net.start(2.0, 2, 2, 0.0)

    self.assertEqual(net.advance(2.0), [0, 1, 3])
    self.assertEqual(net.advance(3.0), [2])
    self.assertEqual(net.next_time(), INF)


class CancelTest(parameterized.TestCase):
  def test_link_is_free_for_the_others(self):
    net = _network(up=[4.0, 1.0], down=[1.0, INF])

    net.start(0.0, 0, 1, 8.0)
    net.start(0.0, 0, 1, 80.0)
    net.cancel(2.0, 1)  # The other has sent 4 bytes and has 1 s to go.

    self.assertEqual(_arrivals(net), {0: 3.0})

  def test_flow_that_has_drained_but_not_arrived_does_not_arrive(self):
    net = _network(up=[4.0, 1.0], down=[1.0, INF], latency=[1.0, 1.0])

    net.start(0.0, 0, 1, 8.0)
    net.advance(2.0)
    net.cancel(3.0, 0)

    self.assertEqual(net.next_time(), INF)

  def test_flow_due_at_this_instant_does_not_arrive(self):
    net = _network(up=[4.0, 1.0], down=[1.0, INF])

    net.start(0.0, 0, 1, 8.0)
    net.cancel(2.0, 0)

    self.assertEqual(net.next_time(), INF)

  def test_start_and_cancel_at_one_instant_leave_no_trace(self):
    net = _network(up=[3.0, 3.0, 3.0], down=None)
    net.start(0.0, 0, 2, 7.1)
    net.start(0.3, 1, 2, 1.7)
    twin = copy.deepcopy(net)

    net.cancel(0.3, net.start(0.3, 0, 1, 5.0))

    self.assertEqual(_arrivals(net), _arrivals(twin))

  @parameterized.named_parameters(
    ('unknown', 5), ('arrived', 0), ('cancelled', 1)
  )
  def test_rejects_a_flow_that_is_not_in_flight(self, flow):
    net = _network(up=[1.0, 1.0], down=[1.0, 1.0])
    net.start(0.0, 0, 1, 0.0)
    net.start(0.0, 0, 1, 9.0)
    net.advance(0.0)
    net.cancel(0.0, 1)

    with self.assertRaisesRegex(ValueError, f'flow: expected .* got {flow}'):
      net.cancel(0.0, flow)


class SimultaneityTest(parameterized.TestCase):
  @parameterized.product(
    workers=[3, 7, 64], servers=[1, 3, 4], link=[INF, 1.0, 0.3]
  )
  def test_flows_with_one_history_drain_at_one_time(
    self, workers, servers, link
  ):
    net = _network(up=[link] * workers + [1.1] * servers, down=None)
    time = 0.0
    # A past in which the servers' links were busy, and not alike.
    for server in range(servers):
      net.start(0.0, 0, workers + server, 0.1 + server / 3)
    time = max(_arrivals(net).values())

    for _ in range(20):
      for worker in range(workers):
        for server in range(servers):
          net.start(time, worker, workers + server, 0.7)
      times = _arrivals(net)
      self.assertLen(times, workers * servers)
      self.assertLen(set(times.values()), 1)
      time = times.popitem()[1]

  def test_changes_of_one_instant_cost_one_sharing(self):
    net = _network(up=[1.0] * 9, down=None)
    for worker in range(8):
      net.start(0.0, worker, 8, 1.0)
    net.next_time()

    with mock.patch.object(net, '_share', wraps=net._share) as share:
      for worker in range(8):
        net.cancel(0.5, worker)
        net.start(0.5, worker, 8, 1.0)
      net.next_time()
      net.next_time()

    self.assertEqual(share.call_count, 1)

  def test_busy_link_delivers_every_byte(self):
    rng = random.Random(0)
    sizes = [rng.uniform(1e5, 1e9) for _ in range(5000)]
    net = _network(up=[1.3e9] * 65, down=None)
    waiting = iter(sizes)
    sender = {net.start(0.0, w, 64, next(waiting)): w for w in range(64)}

    while sender:
      time = net.next_time()
      for flow in net.advance(time):
        worker = sender.pop(flow)
        for size in itertools.islice(waiting, 1):
          sender[net.start(time, worker, 64, size)] = worker

    self.assertAlmostEqual(time * 1.3e9 / sum(sizes), 1.0, delta=1e-9)


class OracleTest(parameterized.TestCase):
  """Random schedules against a slow simulator and what fairness means."""

  @parameterized.parameters(range(20))
  def test_arrivals_are_those_of_the_slow_simulator(self, group):
    for seed in range(20 * group, 20 * group + 20):
      links, schedule = _scenario(seed)

      times = _replay(_network(**links), schedule)

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
      net = _network(up=links['up'], down=links['down'])
      for flow, ends in flows.items():
        net.start(0.0, *ends, 3 * rates[flow] if rates[flow] < INF else 1.0)

      for flow, time in _arrivals(net).items():
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
  def test_restored_network_goes_on_as_the_one_that_was_saved(self, seed):
    links, schedule = _scenario(seed)
    middle = len(schedule) // 2

    straight = _replay(_network(**links), schedule)

    net = _network(**links)
    before = _replay(net, schedule[:middle], finish=False)
    restored = pickle.loads(pickle.dumps(net))
    after = _replay(restored, schedule[middle:])
    self.assertEqual(before | after, straight)

  @parameterized.parameters(range(10))
  def test_asking_for_the_next_time_changes_nothing(self, seed):
    links, schedule = _scenario(seed)

    times = _replay(_network(**links), schedule, ask=True)

    expected = _replay(_network(**links), schedule)
    self.assertEqual(times.keys(), expected.keys())
    for flow, time in times.items():
      self.assertAlmostEqual(time, expected[flow], delta=1e-9)


class RejectionTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('zero_bandwidth', {'up_Bps': [1.0, 0.0]}, r'up_Bps: .* > 0'),
    ('nan_bandwidth', {'down_Bps': [math.nan, 1.0]}, r'down_Bps: .* > 0'),
    ('negative_latency', {'latency_s': [0.0, -1.0]}, r'latency_s: .*\[0, inf'),
    ('endless_latency', {'latency_s': [0.0, INF]}, r'latency_s: .*got .*inf'),
    ('short_vector', {'latency_s': [0.0]}, r'latency_s: expected 2 numbers'),
    ('matrix', {'up_Bps': [[1.0], [1.0]]}, r'up_Bps: expected 2 numbers'),
    ('no_host', {'up_Bps': []}, r'up_Bps: expected 1 numbers'),
  )
  def test_rejects_hosts(self, changes, message):
    names = ('up_Bps', 'down_Bps', 'latency_s')
    arguments = {name: [1.0, 1.0] for name in names}

    with self.assertRaisesRegex(ValueError, message):
      network.Network(**(arguments | changes))

  @parameterized.named_parameters(
    ('source', (0.0, 2, 0, 1.0), 'src, dst: expected hosts < 2, got 2, 0'),
    ('destination', (0.0, 0, -1, 1.0), 'src, dst: .* got 0, -1'),
    ('negative_size', (0.0, 0, 1, -1.0), 'size_bytes: .* got -1.0'),
    ('endless_size', (0.0, 0, 1, INF), 'size_bytes: .* got inf'),
    ('size_nan', (0.0, 0, 1, math.nan), 'size_bytes: .* got nan'),
    ('past', (-1.0, 0, 1, 1.0), 'time: expected 0.0 to inf, got -1.0'),
    ('time_nan', (math.nan, 0, 1, 1.0), 'time: .* got nan'),
    ('never', (INF, 0, 1, 1.0), 'time: .* got inf'),
  )
  def test_rejects_flow(self, arguments, message):
    net = _network(up=[1.0, 1.0], down=[1.0, 1.0])

    with self.assertRaisesRegex(ValueError, message):
      net.start(*arguments)

  def test_rejects_to_pass_an_event(self):
    net = _network(up=[1.0, 1.0], down=[1.0, 1.0])
    net.start(1.0, 0, 1, 2.0)

    for call in (net.advance, lambda time: net.start(time, 0, 1, 1.0)):
      with self.assertRaisesRegex(ValueError, 'time: expected 1.0 to 3.0, got'):
        call(3.5)
    with self.assertRaisesRegex(ValueError, 'time: expected 1.0 to 3.0, got'):
      net.cancel(0.5, 0)


def _network(*, up, down, latency=None):
  """A network; down links are as the up links and latency 0 if not given."""
  return network.Network(
    up_Bps=up, down_Bps=down or up, latency_s=latency or [0.0] * len(up)
  )


def _arrivals(net):
  """Lets everything arrive; {flow: time}."""
  times = {}
  while net.next_time() < INF:
    time = net.next_time()
    times |= dict.fromkeys(net.advance(time), time)
  return times


def _scenario(seed):
  """Hosts and a schedule: (time, src, dst, bytes) starts, (time, id) cancels.

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
    if len(step) == 3:
      net.start(time, *step)
    else:
      with contextlib.suppress(ValueError):  # It may have gone already.
        net.cancel(time, *step)
  return times | (_arrivals(net) if finish else {})


def _simulate(links, schedule):
  """What `_replay` should return, with all rates anew at every event."""
  left, ends, times = {}, {}, {}
  now, started, steps = 0.0, 0, list(schedule)
  while left or steps:
    rates = _rates(links, {flow: ends[flow] for flow in left})
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
      if len(step) == 3:
        left[started], ends[started] = step[2], step[:2]
        started += 1
      elif left.pop(step[0], None) is None and times.get(step[0], -1) >= now:
        del times[step[0]]
  return times


def _rates(links, flows):
  """Progressive filling: all rates rise together until a link is full."""
  room = {('up', host): c for host, c in enumerate(links['up'])}
  room |= {('down', host): c for host, c in enumerate(links['down'])}
  rates = {flow: INF for flow, (src, dst) in flows.items() if src == dst}
  while len(rates) < len(flows):
    users = {}
    for flow, (src, dst) in flows.items():
      if flow not in rates:
        users.setdefault(('up', src), []).append(flow)
        users.setdefault(('down', dst), []).append(flow)
    shares = {link: room[link] / len(users[link]) for link in users}
    level = min(shares.values())
    full = [link for link in users if shares[link] <= level * (1 + 1e-12)]
    for flow in {flow for link in full for flow in users[link]}:
      rates[flow] = level
      if level < INF:
        src, dst = flows[flow]
        room['up', src] -= level
        room['down', dst] -= level
  return rates


if __name__ == '__main__':
  absltest.main()
