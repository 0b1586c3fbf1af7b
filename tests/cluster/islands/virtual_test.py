"""Tests for virtual runs whose workers are islands."""

from absl.testing import absltest, parameterized

from tests.support import small

_BPS, _LATENCY_S, _SIZE = 1e6, 0.001, 6000


def _allreduce_s(hosts, size_bytes, Bps=_BPS, latency_s=_LATENCY_S):
  """Returns the time of a ring: 2 (P - 1) messages of S / P bytes in turn."""
  return 2 * (hosts - 1) * (size_bytes / hosts / Bps + latency_s)


def _seconds(hosts, *slowdown, **changed):
  """Returns the seconds of an iteration of two workers without a model."""
  config = small.timing(
    size_bytes=_SIZE,
    data__ahead=1,
    cluster__workers=2,
    cluster__hosts_per_worker=hosts,
    cluster__speed__slowdown=slowdown or (1.0,),
    **{'cluster__speed__fixed_s': 0.0, **changed},
  )
  summary = small.build(config)()
  return summary['virtual_s'] / (summary['iterations'] / 2)


def _inside_s(
  hosts, *slowdown, Bps=(_BPS,), latency_s=(_LATENCY_S,), **changed
):
  """Returns the seconds that transfers inside islands add to an iteration."""
  links = {
    'cluster__network__island_Bps': Bps,
    'cluster__network__island_latency_s': latency_s,
  }
  free_s = _seconds(hosts, *slowdown, **changed)
  return _seconds(hosts, *slowdown, **changed, **links) - free_s


class VirtualTest(parameterized.TestCase):
  def test_the_slowest_process_of_an_island_sets_its_time(self):
    alone = _seconds(1)
    self.assertAlmostEqual(_seconds(2), alone / 2)
    self.assertAlmostEqual(_seconds(2, 1.0, 3.0), 3 * alone / 2)
    self.assertAlmostEqual(_seconds(2, 1.0, 1.0, 4.0, 1.0), 4 * alone / 2)

  @parameterized.parameters(2, 4, 8)
  def test_an_iteration_has_the_parameters_and_the_gradient_inside(self, hosts):
    once_s = _allreduce_s(hosts, _SIZE)
    self.assertAlmostEqual(_inside_s(hosts), 2 * once_s)
    # Slow computing does not slow transfers down.
    self.assertAlmostEqual(_inside_s(hosts, 3.0), 2 * once_s)

  @parameterized.parameters(2, 4)
  def test_fsdp_gathers_twice_scatters_and_gathers_the_push(self, hosts):
    # A pass is half of an allreduce.  Parameters: 2.  Step: 3.  Push: 1.
    expected_s = (2 + 3 + 1) * _allreduce_s(hosts, _SIZE) / 2
    found_s = _inside_s(hosts, cluster__island_sharding='fsdp')
    self.assertAlmostEqual(found_s, expected_s)

  @parameterized.parameters(('replicated', 2, 0), ('fsdp', 3, 1))
  def test_each_local_step_has_its_transfers(self, sharding, step, end):
    changed = {'cluster__island_sharding': sharding} if end else {}
    pass_s = _allreduce_s(2, _SIZE) / 2
    for count in (2, 4):
      found_s = _inside_s(2, batching__local_steps=count, **changed)
      self.assertAlmostEqual(found_s, (2 + count * step + end) * pass_s)

  def test_the_slowest_links_of_islands_set_the_pace_of_bsp(self):
    found_s = _inside_s(2, Bps=(_BPS, _BPS / 5), latency_s=(0.0, 0.004))
    slow_s = _allreduce_s(2, _SIZE, _BPS / 5, 0.004)
    self.assertAlmostEqual(found_s, 2 * slow_s)

  def test_a_single_example_of_an_island_is_computed_by_all(self):
    found_s = _inside_s(2, batching__worker_batch=1)
    self.assertAlmostEqual(found_s, _allreduce_s(2, _SIZE))

  def test_micro_batches_and_the_inner_optimizer_of_a_model_count(self):
    # Local steps of 8 examples in micro-batches of 4; Adam has two slots of
    # each parameter, and a counter.
    fields = {
      'epochs': 1.0,
      'data__ahead': 1,
      'cluster__workers': 2,
      'cluster__hosts_per_worker': 2,
      'cluster__speed__slowdown': (1.0,),
      'batching__local_steps': 3,
      'batching__micro_batch': 4,
      'optimizer__name': 'adamw',
      'cluster__island_sharding': 'fsdp',
      'cluster__network__island_Bps': (_BPS,),
    }
    run, summary = small.execute(**fields)
    size_bytes = small.size_bytes(run)
    compute_s = summary['worker_seconds']['compute'] / summary['iterations']
    passes_s = (2 + 3 * 2 * 3 + 1 + 2) * size_bytes / 2 / _BPS
    counter_s = 4 / 2 / _BPS
    self.assertAlmostEqual(
      compute_s, 0.02 + 0.0025 * 3 * 8 / 2 + passes_s + counter_s
    )

  def test_links_are_those_of_all_islands(self):
    message = 'island_Bps: expected one value .* of 2'
    with self.assertRaisesRegex(ValueError, message):
      _inside_s(2, Bps=(1.0, 1.0, 1.0))

  def test_links_inside_need_islands(self):
    with self.assertRaisesRegex(
      ValueError, 'island_Bps: .*hosts_per_worker is 1'
    ):
      _inside_s(1)


if __name__ == '__main__':
  absltest.main()
