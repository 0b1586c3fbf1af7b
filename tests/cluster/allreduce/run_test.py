"""Tests for allreduce runs of real processes."""

import contextlib
import importlib
import json
import os
import pathlib
import random
import signal
import tempfile
import time

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from cluster.process import roles
from outputs import checkpoints
from tests.support import processes, replays
from tests.support.recomputing import recompute

_TIMEOUT_S = 2.0
# Checkpoints hold classes of these.
_CLASSES = (
  'optax',
  'batching.fixed',
  'batching.lb_bsp',
  'predict.ema',
  'sync.bsp',
  'train',
)
_SLOW = {
  'cluster__timeout_s': _TIMEOUT_S,
  'cluster__speed__injected': True,
  'cluster__speed__name': 'constant',
  'cluster__speed__fixed_s': 0.02,
  'cluster__speed__per_example_s': 0.0,
  'log_every': 10**6,
}


def _restore_newest(launch):
  """Returns states of learner and coordinator, of the newest checkpoint."""
  for name in _CLASSES:
    importlib.import_module(name)
  directory = launch.folder / 'checkpoints'
  parts = checkpoints.read(directory, checkpoints.steps(directory)[-1])
  state = parts[checkpoints.COORDINATOR]['runtime']
  return state['store']['learner'], state['coordinator']


class RunTest(processes.TestCase, parameterized.TestCase):
  def _launch(self, **fields):
    fields = {'route__name': 'ring', **_SLOW} | fields
    return processes.launch(servers=0, **fields)

  def _check_run(self, launch, *, ended='finished'):
    """Checks the accounting, the replay, and that no resource is left."""
    self._check_nothing_left(launch)
    summary, events = launch.summary, launch.rows('events.jsonl')
    self.assertEqual(summary['ended'], ended, launch.text)
    pushed = [event['examples'] for event in events if event['event'] == 'push']
    self.assertLen(pushed, summary['iterations'])
    self.assertEqual(sum(pushed), summary['examples'])
    held = sum(stop - start for start, stop in summary['outstanding'])
    self.assertEqual(summary['issued'], sum(pushed) + held)
    self.assertEqual(summary['late_compilations'], 0, launch.text)
    replays.check(self, launch.folder)
    self.assertNotIn('Replicas differ', launch.text)

  def _check_learner(self, launch):
    learner, coordinator = _restore_newest(launch)
    for leaf in jax.tree.leaves(learner['params']):
      self.assertTrue(np.isfinite(leaf).all())
    self.assertEqual(learner['version'], launch.summary['updates'])
    stream = coordinator['_stream']
    self.assertEqual(learner['examples'], stream.used)

  def test_a_worker_dies_and_rejoins(self):
    with self._launch(
      workers=3,
      model=False,
      epochs=1000.0,
      cluster__faults=((1, 10, 'die', 'last'),),
    ) as launch:
      launch.until('Worker 1 has rejoined')
      launch.until('Membership epoch 2 begins: a worker joins')
      rows = len(launch.rows('events.jsonl'))
      while len(launch.rows('events.jsonl')) < rows + 30:
        time.sleep(0.05)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self._check_run(launch, ended='interrupted')
    self.assertEqual(launch.summary['admissions'], [1, 2, 1])
    self.assertLen(launch.summary['lost'], 1)
    events = launch.rows('events.jsonl')
    joined = [k for k, event in enumerate(events) if event['event'] == 'join']
    self.assertLen(joined, 1)
    after = {e['worker'] for e in events[joined[0] :] if e['event'] == 'push'}
    self.assertEqual(after, {0, 1, 2})

  def test_a_worker_comes_after_the_start(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    address = f'--coordinator=127.0.0.1:{roles.free_ports(1)[0]}'

    def start(index):
      return processes.alone(
        folder,
        f'--role=worker:{index}',
        address,
        route__name='ring',
        epochs=1000.0,
        cluster__workers=3,
        cluster__min_workers=2,
        **_SLOW,
      )

    with start(0) as coordinator, start(1) as other:
      coordinator.until('The run starts with 2 of 3 workers')
      coordinator.reach(10 * processes.BATCH)
      with start(2) as late:
        coordinator.until('Worker 2 has joined')
        coordinator.until('Membership epoch 1 begins: a worker joins')
        rows = len(coordinator.rows('events.jsonl'))
        while len(coordinator.rows('events.jsonl')) < rows + 30:
          time.sleep(0.05)
        for launch in (coordinator, other, late):
          launch.signal(signal.SIGTERM)
        for launch in (coordinator, other, late):
          self.assertEqual(launch.wait(), 143, launch.text)
    self._check_run(coordinator, ended='interrupted')
    self.assertEqual(coordinator.summary['admissions'], [1, 1, 1])
    self.assertEmpty(coordinator.summary['lost'])
    events = coordinator.rows('events.jsonl')
    joined = [k for k, event in enumerate(events) if event['event'] == 'join']
    self.assertLen(joined, 1)
    before, after = (
      {event['worker'] for event in part if event['event'] == 'push'}
      for part in (events[: joined[0]], events[joined[0] :])
    )
    self.assertEqual((before, after), ({0, 1}, {0, 1, 2}))
    self._check_learner(coordinator)
    self.assertEqual(recompute.difference(coordinator.folder), 0.0)

  def test_fast_links_have_large_chunks_and_lanes(self):
    with self._launch(
      workers=2,
      epochs=0.5,
      model__mlp__hidden=(2000, 500),
      route__name='forest',
      route__forest__cluster='star([1.25e9, 1.25e9])',
      route__forest__adapt=True,
      route__lanes=2,
      eval_every=0.25,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self._check_run(launch)
    self._check_learner(launch)
    rows = [row for row in launch.rows('events.jsonl') if 'chunk_bytes' in row]
    self.assertGreater(rows[0]['chunk_bytes'], 48 * 1024)
    self.assertGreater(rows[0]['size_bytes'], 3 * rows[0]['chunk_bytes'])

  @parameterized.parameters(
    ('ring', {}),
    ('forest', {}),
    ('ring', {'wire__name': 'sparse', 'wire__sparse__chunk': 16}),
    (
      'ring',
      {
        'wire__name': 'sparse',
        'wire__sparse__chunk': 16,
        'wire__sparse__select_lag': 1,
      },
    ),
  )
  @pytest.mark.soak
  def test_deaths_in_every_phase(self, route, wire):
    phases = ('pull', 'compute', 'first', 'last')
    faults = [
      (worker, 20 + 60 * k + 2 * worker, kind, phase)
      for k, phase in enumerate(phases)
      for worker, kind in ((1, 'die'), (2, 'die'), (3, 'hang'))
    ]
    with self._launch(
      workers=4,
      route__name=route,
      epochs=150.0,
      cluster__faults=tuple(faults),
      **wire,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    marks = (path.name for path in (launch.folder / 'faults').iterdir())
    happened = {tuple(map(int, name.split('-')[:2])) for name in marks}
    # Iterations that another death has ended before their fault was due.
    lost = {(e['worker'], e['iteration']) for e in launch.summary['lost']}
    due = {(worker, iteration) for worker, iteration, *_ in faults}
    self.assertLessEqual(due, happened | lost)
    self.assertGreaterEqual(len(happened), len(due) - 3)
    self._check_run(launch)
    self._check_learner(launch)

  @pytest.mark.soak
  def test_replicas_are_equal_while_batches_change(self):
    with self._launch(
      workers=3,
      epochs=40.0,
      eval_every=0.5,
      batching__name='lb_bsp',
      batching__lb_bsp__threshold=0.0,
      batching__lb_bsp__predictor__name='ema',
      cluster__speed__slowdown=(1.0, 1.5, 3.0),
      cluster__speed__per_example_s=0.001,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self._check_run(launch)
    self._check_learner(launch)
    self.assertGreaterEqual(launch.summary['updates'], 200)
    events = launch.rows('events.jsonl')
    sizes = {
      (e['worker'], e['examples']) for e in events if e['event'] == 'push'
    }
    self.assertGreater(len(sizes), 6)

  @pytest.mark.soak
  def test_a_run_resumes_with_other_numbers_of_workers_after_kills(self):
    rng, folder = random.Random(7), None
    for workers in (3, 3, 2, 4, 3):
      with self._launch(
        workers=workers,
        folder=folder,
        epochs=30.0,
        cluster__speed__slowdown=(1.0,),
        checkpoint__every_examples=96,
      ) as launch:
        folder = launch.folder
        done = _examples(folder)
        while _examples(folder) < done + 300 and launch.code is None:
          time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 0.3))
        for row in launch.rows('launch.jsonl'):
          if row['event'] == 'start':
            with contextlib.suppress(ProcessLookupError):
              os.kill(row['pid'], signal.SIGKILL)
        launch.kill()
    with self._launch(workers=3, folder=folder, epochs=30.0) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self._check_run(launch)
    self._check_learner(launch)


def _examples(folder):
  path = folder / 'events.jsonl'
  if not path.exists():
    return 0
  lines = path.read_text().splitlines()[:-1]
  rows = map(json.loads, lines)
  return sum(row['examples'] for row in rows if row['event'] == 'push')


if __name__ == '__main__':
  absltest.main()
