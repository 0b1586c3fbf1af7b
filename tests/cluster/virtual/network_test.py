"""Tests for cluster.network: known timelines, cancelled flows, rejections."""

import copy
import itertools
import math
import random

from absl.testing import absltest, parameterized

from cluster.virtual import network
from tests.support import networks

INF = math.inf


class TimelineTest(parameterized.TestCase):
  """Timelines worked out by hand, and closed forms."""

  def test_flow_takes_its_size_over_the_slower_of_its_links(self):
    net = networks.make(up=[8.0, 1.0], down=[1.0, 5.0])

    net.start(2.0, 0, 1, 20.0)

    self.assertEqual(networks.arrivals(net), {0: 6.0})

  def test_flow_that_joins_halves_the_rate_until_it_has_drained(self):
    net = networks.make(up=[10.0, 1.0], down=[1.0, INF])

    net.start(0.0, 0, 1, 100.0)  # 40 bytes by 4, 40 more by 12, 20 by 14.
    net.start(4.0, 0, 1, 40.0)

    self.assertEqual(networks.arrivals(net), {0: 14.0, 1: 12.0})

  def test_capacity_that_a_slow_worker_leaves_goes_to_the_others(self):
    net = networks.make(up=[2.0, INF, INF, 1.0], down=[1.0, 1.0, 1.0, 10.0])

    net.start(0.0, 0, 3, 20.0)  # At 2 throughout.
    net.start(0.0, 1, 3, 40.0)  # At 4 until 5, then at 8.
    net.start(0.0, 2, 3, 20.0)  # At 4.

    self.assertEqual(networks.arrivals(net), {0: 10.0, 1: 7.5, 2: 5.0})

  def test_cap_binds_again_when_the_others_have_drained(self):
    net = networks.make(up=[4.0, INF, 1.0], down=[1.0, 1.0, 6.0])

    net.start(0.0, 0, 2, 14.0)  # At 3 until 2, then at 4.
    net.start(0.0, 1, 2, 6.0)

    self.assertEqual(networks.arrivals(net), {0: 4.0, 1: 2.0})

  def test_two_shared_links_hold_back_different_flows(self):
    net = networks.make(up=[6.0, INF, 1.0, 1.0], down=[1.0, 1.0, 4.0, INF])

    net.start(0.0, 0, 2, 20.0)  # Host 2 gives 2 to each of its two flows,
    net.start(0.0, 0, 3, 40.0)  # and so leaves 4 of host 0 for this one.
    net.start(0.0, 1, 2, 20.0)

    self.assertEqual(networks.arrivals(net), {0: 10.0, 1: 10.0, 2: 10.0})

  @parameterized.product(flows=[1, 2, 7, 64], to_one=[True, False])
  def test_equal_flows_of_one_link_each_take_their_number_of_times(
    self, flows, to_one
  ):
    net = networks.make(up=[3.0] * (flows + 1), down=[3.0] * (flows + 1))

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
    net = networks.make(up=[bandwidth] * (workers + 1), down=None)

    for worker in range(workers):
      net.start(0.0, workers, worker, size)
      net.start(0.0, worker, workers, size)

    times = set(networks.arrivals(net).values())
    self.assertEqual(times, {workers * size / bandwidth})

  def test_latency_of_both_hosts_delays_arrival_and_holds_no_link(self):
    net = networks.make(up=[2.0, 2.0], down=[2.0, 2.0], latency=[0.25, 5.0])

    net.start(0.0, 0, 1, 2.0)
    self.assertEqual(net.next_time(), 1.0)
    self.assertEqual(net.advance(1.0), [])
    net.start(1.0, 0, 1, 2.0)

    self.assertEqual(networks.arrivals(net), {0: 6.25, 1: 7.25})

  @parameterized.named_parameters(
    ('between_infinite_links', 0, 1, 1e9, 4.0 + 0.75),
    ('of_zero_bytes', 2, 0, 0.0, 4.0 + 1.5),
    ('inside_one_host', 2, 2, 1e9, 4.0),
  )
  def test_flow_takes_its_latency_only(self, src, dst, size, expected):
    net = networks.make(
      up=[INF, INF, 1.0], down=[INF, INF, 1.0], latency=[0.5, 0.25, 1.0]
    )

    net.start(4.0, src, dst, size)

    self.assertEqual(networks.arrivals(net), {0: expected})

  def test_flows_that_arrive_together_are_returned_by_id(self):
    net = networks.make(up=[INF] * 3, down=[INF] * 3, latency=[2.0, 1.0, 0.0])

    net.start(0.0, 0, 2, 1.0)
    net.start(1.0, 1, 2, 1.0)
    net.start(2.0, 2, 1, 0.0)
    net.start(2.0, 2, 2, 0.0)

    self.assertEqual(net.advance(2.0), [0, 1, 3])
    self.assertEqual(net.advance(3.0), [2])
    self.assertEqual(net.next_time(), INF)


class WeightTest(parameterized.TestCase):
  """Flows of unequal weights."""

  def test_first_end_is_that_of_its_share_and_the_last_one_of_all_bytes(self):
    net = networks.make(up=[12.0, INF, INF], down=[INF] * 3)

    net.start(0.0, 0, 1, 45.0, 3.0)  # At 9 until 5.
    net.start(0.0, 0, 2, 45.0, 1.0)  # At 3 until then, and then at 12.

    self.assertEqual(networks.arrivals(net), {0: 5.0, 1: 7.5})

  def test_weight_of_a_flow_that_is_alone_has_no_effect(self):
    net = networks.make(up=[8.0, 1.0], down=[1.0, 5.0])

    net.start(2.0, 0, 1, 20.0, 0.3)

    self.assertEqual(networks.arrivals(net), {0: 6.0})

  def test_rate_above_the_flows_other_link_goes_to_the_others(self):
    net = networks.make(up=[2.0, INF, 1.0], down=[1.0, 1.0, 8.0])

    net.start(0.0, 0, 2, 8.0, 3.0)  # Its share is 6, its own link has 2.
    net.start(0.0, 1, 2, 24.0, 1.0)

    self.assertEqual(networks.arrivals(net), {0: 4.0, 1: 4.0})

  @parameterized.parameters(0.0, -1.0, INF, math.nan)
  def test_rejects_weight(self, weight):
    net = networks.make(up=[1.0, 1.0], down=[1.0, 1.0])

    with self.assertRaisesRegex(ValueError, f'weight: .* got {weight}'):
      net.start(0.0, 0, 1, 1.0, weight)


class BurstTest(parameterized.TestCase):
  """Bytes that idle links let pass at once."""

  @parameterized.parameters((20.0, 3.0), (8.0, 0.0), (5.0, 0.0))
  def test_flow_after_a_pause_has_a_burst_less_to_send(self, size, expected):
    net = networks.make(up=[4.0, INF], down=[INF, 9.0], burst_bytes=8.0)

    net.start(0.0, 0, 1, size)

    self.assertEqual(networks.arrivals(net), {0: expected})

  @parameterized.parameters((0.0, 5.0), (1.0, 4.0), (2.0, 3.0), (9.0, 3.0))
  def test_pause_earns_the_bytes_that_did_not_pass(self, pause_s, took_s):
    net = networks.make(up=[4.0, INF], down=[INF, INF], burst_bytes=8.0)
    net.start(0.0, 0, 1, 20.0)
    self.assertEqual(net.advance(3.0), [0])

    net.start(3.0 + pause_s, 0, 1, 20.0)

    self.assertEqual(networks.arrivals(net), {1: 3.0 + pause_s + took_s})

  def test_flows_of_one_link_have_one_burst_together(self):
    net = networks.make(up=[4.0, INF, INF], down=[INF] * 3, burst_bytes=8.0)

    net.start(0.0, 0, 1, 8.0)
    net.start(0.0, 0, 2, 8.0)

    self.assertEqual(networks.arrivals(net), {0: 0.0, 1: 2.0})

  def test_link_below_its_rate_keeps_its_burst(self):
    net = networks.make(up=[1.0, INF], down=[INF, 4.0], burst_bytes=8.0)
    net.start(0.0, 0, 1, 16.0)  # Both bursts; then at 1, below 4.

    net.advance(8.0)
    net.start(8.0, 0, 1, 8.0)  # The up link has no burst yet.

    self.assertEqual(networks.arrivals(net), {1: 16.0})

  @parameterized.parameters(-1.0, INF, math.nan)
  def test_rejects_burst(self, burst_bytes):
    with self.assertRaisesRegex(ValueError, f'burst_bytes: .*{burst_bytes}'):
      networks.make(up=[1.0], down=[1.0], burst_bytes=burst_bytes)


class CancelTest(parameterized.TestCase):
  def test_link_is_free_for_the_others(self):
    net = networks.make(up=[4.0, 1.0], down=[1.0, INF])

    net.start(0.0, 0, 1, 8.0)
    net.start(0.0, 0, 1, 80.0)
    net.cancel(2.0, 1)  # The other has sent 4 bytes and has 1 s to go.

    self.assertEqual(networks.arrivals(net), {0: 3.0})

  def test_flow_that_has_drained_but_not_arrived_does_not_arrive(self):
    net = networks.make(up=[4.0, 1.0], down=[1.0, INF], latency=[1.0, 1.0])

    net.start(0.0, 0, 1, 8.0)
    net.advance(2.0)
    net.cancel(3.0, 0)

    self.assertEqual(net.next_time(), INF)

  def test_flow_due_at_this_instant_does_not_arrive(self):
    net = networks.make(up=[4.0, 1.0], down=[1.0, INF])

    net.start(0.0, 0, 1, 8.0)
    net.cancel(2.0, 0)

    self.assertEqual(net.next_time(), INF)

  def test_start_and_cancel_at_one_instant_leave_no_trace(self):
    net = networks.make(up=[3.0, 3.0, 3.0], down=None)
    net.start(0.0, 0, 2, 7.1)
    net.start(0.3, 1, 2, 1.7)
    twin = copy.deepcopy(net)

    net.cancel(0.3, net.start(0.3, 0, 1, 5.0))

    self.assertEqual(networks.arrivals(net), networks.arrivals(twin))

  @parameterized.named_parameters(
    ('unknown', 5), ('arrived', 0), ('cancelled', 1)
  )
  def test_rejects_a_flow_that_is_not_in_flight(self, flow):
    net = networks.make(up=[1.0, 1.0], down=[1.0, 1.0])
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
    net = networks.make(up=[link] * workers + [1.1] * servers, down=None)
    time = 0.0
    # A past in which the servers' links were busy, and not alike.
    for server in range(servers):
      net.start(0.0, 0, workers + server, 0.1 + server / 3)
    time = max(networks.arrivals(net).values())

    for _ in range(20):
      for worker in range(workers):
        for server in range(servers):
          net.start(time, worker, workers + server, 0.7)
      times = networks.arrivals(net)
      self.assertLen(times, workers * servers)
      self.assertLen(set(times.values()), 1)
      time = times.popitem()[1]

  def test_flows_that_replace_others_at_one_instant_share_as_new_ones(self):
    net, fresh = (networks.make(up=[1.0] * 9, down=None) for _ in range(2))
    for worker in range(8):
      net.start(0.0, worker, 8, 1.0)
    net.next_time()
    for worker in range(8):
      net.cancel(0.5, worker)
      net.start(0.5, worker, 8, 1.0 + worker)
      fresh.start(0.5, worker, 8, 1.0 + worker)

    replaced = [*networks.arrivals(net).values()]
    self.assertEqual(replaced, [*networks.arrivals(fresh).values()])
    self.assertEqual(replaced[-1], 0.5 + sum(1.0 + w for w in range(8)))

  def test_busy_link_delivers_every_byte(self):
    rng = random.Random(0)
    sizes = [rng.uniform(1e5, 1e9) for _ in range(5000)]
    net = networks.make(up=[1.3e9] * 65, down=None)
    waiting = iter(sizes)
    sender = {net.start(0.0, w, 64, next(waiting)): w for w in range(64)}

    while sender:
      time = net.next_time()
      for flow in net.advance(time):
        worker = sender.pop(flow)
        for size in itertools.islice(waiting, 1):
          sender[net.start(time, worker, 64, size)] = worker

    self.assertAlmostEqual(time * 1.3e9 / sum(sizes), 1.0, delta=1e-9)


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
    net = networks.make(up=[1.0, 1.0], down=[1.0, 1.0])

    with self.assertRaisesRegex(ValueError, message):
      net.start(*arguments)

  def test_rejects_to_pass_an_event(self):
    net = networks.make(up=[1.0, 1.0], down=[1.0, 1.0])
    net.start(1.0, 0, 1, 2.0)

    for call in (net.advance, lambda time: net.start(time, 0, 1, 1.0)):
      with self.assertRaisesRegex(ValueError, 'time: expected 1.0 to 3.0, got'):
        call(3.5)
    with self.assertRaisesRegex(ValueError, 'time: expected 1.0 to 3.0, got'):
      net.cancel(0.5, 0)


if __name__ == '__main__':
  absltest.main()
