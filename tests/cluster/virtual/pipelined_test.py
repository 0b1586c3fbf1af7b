"""Tests for pipelined servers in the virtual runtime, through train."""

import json
import math
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import analysis
import train
from analysis import recorded_configs, runs
from cluster import pipelining
from cluster.virtual import transfers
from learning.layout import split_evenly
from sync import record
from tests.support import small, stopping

_CHUNKS = 64
_BYTES = 1768  # Sizes of the model of small.config.
_INF = math.inf


# Has models as small as these travel in all pieces.
_PATCHED = mock.patch.object(pipelining, 'MIN_PIECE_BYTES', 1)


def setUpModule():
  _PATCHED.start()


def tearDownModule():
  _PATCHED.stop()


def _train(**changed):
  return small.execute(route__server__pipelined=True, **changed)


def _barriers(run):
  rows = small.rows(run, 'metrics.jsonl')
  return [row['time'] for row in rows if row['kind'] == 'barrier']


def _params(run):
  leaves = jax.tree.leaves(run.runtime.coordinator.store.learner.params)
  return [np.asarray(leaf) for leaf in leaves]


def _constant(compute_s, workers):
  return {
    'cluster__workers': workers,
    'cluster__speed__fixed_s': compute_s,
    'cluster__speed__per_example_s': 0.0,
  }


class EqualWorkersTest(parameterized.TestCase):
  """Closed forms, with servers of B bytes/s each way."""

  @parameterized.product(
    workers=[1, 4, 8],
    worker_Bps=[_INF, 1e6],
    latency_s=[0.0, 0.003],
    servers=[1, 2],
  )
  def test_a_superstep_pays_for_one_direction_and_one_chunk(
    self, workers, worker_Bps, latency_s, servers
  ):
    servers_Bps = 1e6 / servers  # No link of a worker is the limit.
    config = small.timing(
      size_bytes=_BYTES,
      **_constant(0.1, workers),
      sync__name='bsp',
      route__server__pipelined=True,
      cluster__speed__slowdown=(1.0,),
      cluster__network__server_up_Bps=(servers_Bps,),
      cluster__network__server_down_Bps=(servers_Bps,),
      cluster__network__worker_up_Bps=(worker_Bps,),
      cluster__network__worker_down_Bps=(worker_Bps,),
      cluster__network__server_latency_s=(latency_s,),
      route__server__servers=servers,
      epochs=1.0,
    )
    run = small.build(config)
    run()

    barriers = _barriers(run)
    whole_s = workers * _BYTES / servers / servers_Bps
    sizes = split_evenly(math.ceil(_BYTES / servers), _CHUNKS // servers)
    pushed_s, pulled_s = _follow_one(
      [workers * size / servers_Bps for size in sizes], latency_s
    )
    first = whole_s + latency_s + 0.1 + pushed_s
    self.assertAlmostEqual(barriers[0], first, places=9)
    np.testing.assert_allclose(np.diff(barriers), 0.1 + pulled_s, rtol=1e-9)

  def test_latency_counts_twice_while_windows_keep_the_link_busy(self):
    chunks, latency_s = [0.01] * 64, 0.01
    _, pulled_s = _follow_one(chunks, latency_s)
    self.assertAlmostEqual(pulled_s, 0.64 + 0.01 + 2 * latency_s)


def _follow_one(chunks, latency_s):
  """Returns the time of a push by all workers, and of the pull that follows.

  Args:
    chunks: Seconds that each chunk of all workers takes at the server.
    latency_s: Seconds that each travels.
  """
  pushed, pulled = [], []
  for number, seconds in enumerate(chunks):
    start = pushed[-1] if number else 0.0
    if number >= pipelining.AHEAD:
      start = max(start, pulled[number - pipelining.AHEAD] + latency_s)
    pushed.append(start + seconds)
    served = max(pushed[-1] + latency_s, pulled[-1] if number else 0.0)
    pulled.append(served + seconds)
  return pushed[-1] + latency_s, pulled[-1] + latency_s


class _Oracle:
  """Supersteps of workers with links of their own and servers without limits.

  A chunk needs no network to be followed: it takes its bytes over the link.
  """

  up = (3e5, 2e5, 1e5)
  down = (1e5, 3e5, 2e5)
  compute_s = (0.1, 0.13, 0.31)
  config = {
    'cluster__workers': 3,
    'cluster__speed__fixed_s': 0.1,
    'cluster__speed__per_example_s': 0.0,
    'cluster__speed__slowdown': (1.0, 1.3, 3.1),
    'cluster__network__worker_up_Bps': up,
    'cluster__network__worker_down_Bps': down,
  }

  def __init__(self, size_bytes):
    self.size_bytes = size_bytes
    self.chunks = split_evenly(size_bytes, _CHUNKS)
    self.starts = {}
    for worker in range(3):
      self.pull(worker, 0.0)

  def pull(self, worker, time):
    """An ordinary pull."""
    self.starts[worker] = (
      time + self.size_bytes / self.down[worker] + self.compute_s[worker]
    )

  def pushed(self, worker):
    """Returns the arrival times of the chunks of a push."""
    return self._follow()[0][worker]

  def barrier(self, death=None):
    """Ends the superstep and returns when it ended.

    Args:
      death: Time and worker of a death in it.
    """
    sent, _, pulled = self._follow()
    options = {}
    if death:
      died, worker = death
      options['not_before'] = died
      if died > max(times[0] for times in sent.values()):  # Sums are void.
        options |= {'opened': died, 'held': pulled}
      del self.starts[worker]
    _, served, pulled = self._follow(**options)
    for worker in self.starts:
      self.starts[worker] = pulled[worker][-1] + self.compute_s[worker]
    return served[-1]

  def _follow(self, not_before=0.0, opened=np.inf, held=None):
    """Returns the times of chunks: sent by worker, complete, and pulled.

    Args:
      not_before: Time before which no chunk is complete.
      opened: Time from which windows hold no push back.
      held: Pulls that open the windows; None for the ones returned.
    """
    sent, pulled = ({worker: [] for worker in self.starts} for _ in range(2))
    served = []
    for number, size in enumerate(self.chunks):
      for worker, times in sent.items():
        start = times[-1] if number else self.starts[worker]
        if number >= pipelining.AHEAD:
          answer = (held or pulled)[worker][number - pipelining.AHEAD]
          start = max(start, min(answer, opened))
        times.append(start + size / self.up[worker])
      served.append(max(not_before, *(times[-1] for times in sent.values())))
      for worker, times in pulled.items():
        start = max(served[-1], times[-1] if number else 0.0)
        times.append(start + size / self.down[worker])
    return sent, served, pulled


class UnequalWorkersTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    built = small.build(small.config(**_Oracle.config))
    self.oracle = _Oracle(small.size_bytes(built))

  def test_chunks_are_served_when_the_last_worker_has_pushed_them(self):
    run, _ = _train(**_Oracle.config)

    expected = [self.oracle.barrier() for _ in range(16)]
    np.testing.assert_allclose(_barriers(run), expected, rtol=1e-9)

  def test_a_death_voids_sent_pieces_and_a_rejoining_worker_pulls_all(self):
    oracle = self.oracle
    # Worker 2 is the last to push; the others have pulled chunks by then.
    died = oracle.pushed(2)[20] + 1e-4
    expected = [oracle.barrier(death=(died, 2))]
    expected.append(oracle.barrier())
    back = (expected[0] + expected[1]) / 2
    oracle.pull(2, expected[1])
    expected += [oracle.barrier() for _ in range(3)]

    script = ((float(died), 'leave', 2), (float(back), 'join', 2))
    run, summary = _train(**_Oracle.config, cluster__script=script)

    np.testing.assert_allclose(_barriers(run)[:5], expected, rtol=1e-9)
    self.assertLen(summary['lost'], 1)
    outstanding = sum(stop - start for start, stop in summary['outstanding'])
    used = summary['examples'] + summary['examples_pending']
    self.assertEqual(used + outstanding, run.runtime.coordinator.issued)

  @parameterized.parameters(0, 5, 31)
  def test_others_continue_without_the_unpushed_pieces_of_a_dead_worker(
    self, last
  ):
    oracle = self.oracle
    died = oracle.pushed(2)[last] - 1e-4  # Before chunk `last` is in.
    expected = [oracle.barrier(death=(died, 2))]
    expected += [oracle.barrier() for _ in range(3)]

    script = ((float(died), 'leave', 2),)
    run, _ = _train(**_Oracle.config, cluster__script=script)

    np.testing.assert_allclose(_barriers(run)[:4], expected, rtol=1e-9)

  def test_a_push_that_was_complete_before_the_death_is_not_void(self):
    oracle = self.oracle
    # The slowest worker lacks a chunk; earlier pieces stay.
    died = oracle.pushed(2)[-2] + 1e-4
    self.assertGreater(died, oracle.pushed(0)[-1])
    expected = [oracle.barrier()]
    del oracle.starts[0]
    expected += [oracle.barrier() for _ in range(3)]

    script = ((float(died), 'leave', 0),)
    run, summary = _train(**_Oracle.config, cluster__script=script)

    np.testing.assert_allclose(_barriers(run)[:4], expected, rtol=1e-9)
    self.assertEqual(summary['lost'], [])


class SameNumbersTest(parameterized.TestCase):
  """Published BSP is the oracle of everything but times."""

  @parameterized.product(servers=[1, 2], dtype=['float32', 'bfloat16'])
  def test_pipelining_changes_only_times(self, servers, dtype):
    changed = {
      'route__server__servers': servers,
      'wire__dense__dtype': dtype,
      'optimizer__sgd__momentum': 0.9,
      'cluster__speed__slowdown': (1.0, 1.3, 1.6),
      'cluster__network__server_up_Bps': (2e4,),
      'cluster__network__server_down_Bps': (3e4,),
      'cluster__network__worker_latency_s': (1e-4,),
    }
    run, summary = _train(**changed)
    published, expected = small.execute(**changed)

    for one, other in zip(_params(run), _params(published), strict=True):
      np.testing.assert_array_equal(one, other)
    for name in ('bytes', 'examples', 'updates', 'staleness', 'final_accuracy'):
      self.assertEqual(summary[name], expected[name])
    self.assertEqual(
      self._column(run, 'accuracy'), self._column(published, 'accuracy')
    )
    self.assertLess(summary['virtual_s'], expected['virtual_s'])
    self.assertGreater(summary['goodput'], expected['goodput'])
    self.assertAlmostEqual(
      sum(summary['worker_seconds'].values()), 3 * summary['virtual_s']
    )
    self.assertEqual(summary['compilations'], 0)

  def _column(self, run, name):
    return [r[name] for r in small.rows(run, 'metrics.jsonl') if name in r]

  def test_without_limits_and_windows_times_are_those_of_plain_bsp(self):
    changed = {
      **_constant(0.25, 3),
      'cluster__speed__slowdown': (1.0, 1.0, 2.0),
      'cluster__script': (
        (0.5, 'leave', 1),
        (1.0, 'join', 1),
        (1.0, 'leave', 2),
        (1.5, 'join', 2),
        (1.5, 'leave', 0),
        (2.0, 'join', 0),
      ),
    }
    with mock.patch.object(transfers, 'AHEAD', _CHUNKS):
      run, _ = _train(**changed)
    published, _ = small.execute(**changed)

    for name in ('events.jsonl', 'trace.json'):
      one, other = (
        (each.files.workdir / name).read_bytes() for each in (run, published)
      )
      self.assertEqual(one, other)
    for one, other in zip(_params(run), _params(published), strict=True):
      np.testing.assert_array_equal(one, other)

  def test_a_death_as_the_last_chunk_arrives_comes_before_the_push(self):
    # Worker 1 has no limits and dies at the very time of its push.
    config = {
      **_constant(0.25, 2),
      'cluster__speed__slowdown': (1.0, 2.0),
      'cluster__network__worker_up_Bps': (1e5, _INF),
    }
    chunks = split_evenly(
      small.size_bytes(small.build(small.config(**config))), _CHUNKS
    )
    run, summary = _train(**config, cluster__script=((0.5, 'leave', 1),))
    self.assertEqual(summary['iterations'], summary['updates'])
    self.assertLen(summary['lost'], 1)
    left = sum(chunks[pipelining.AHEAD :])  # Of the push of worker 0.
    self.assertAlmostEqual(_barriers(run)[0], 0.5 + left / 1e5)


class RecordTest(parameterized.TestCase):
  def _eventful(self):
    limited = {'cluster__network__worker_up_Bps': (1e5, 5e4, 2e4)}
    return stopping.eventful('bsp', route__server__pipelined=True, **limited)

  def test_a_run_resumes_from_the_middle_of_a_superstep(self):
    straight = small.build(self._eventful())
    cluster, both_ways, steps = straight.runtime, [], 0
    original = cluster.step

    def step():
      nonlocal steps
      original()
      steps += 1
      flows = cluster._transfers._flows.values()
      if {flow.pulls for flow in flows} == {True, False}:
        both_ways.append(steps)

    with mock.patch.object(cluster, 'step', step):
      straight()
    expected = stopping.results(straight)
    self.assertGreater(len(both_ways), 30)

    for saved_at in both_ways[5 :: len(both_ways) // 2]:
      workdir = f'{tempfile.mkdtemp()}/run'
      run = train.build(self._eventful(), workdir=workdir)
      with self.assertRaises(stopping.Killed):
        stopping.stop(run, saved_at=[saved_at], killed_at=saved_at + 9)
      run = train.build(self._eventful(), workdir=workdir)
      self.assertIsNotNone(run.sizes)
      run()
      got = stopping.results(run)
      for one, other in zip(got['params'], expected['params'], strict=True):
        np.testing.assert_array_equal(one, other)
      for name in ('metrics', 'summary', 'events', 'trace'):
        self.assertEqual(got[name], expected[name])

  def test_the_recorded_events_give_the_recorded_decisions(self):
    run = small.build(self._eventful())
    run()
    scheme = recorded_configs.make_scheme(
      analysis.read(run.files.workdir).config, 3
    )
    rows = runs.read_events(run.files.workdir)
    for recorded, replayed in record.replay(scheme, rows):
      self.assertEqual(recorded, replayed)
    summary = json.loads((run.files.workdir / 'summary.json').read_text())
    self.assertEqual(summary['ended'], 'finished')


if __name__ == '__main__':
  absltest.main()
