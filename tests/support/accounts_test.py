"""Tests for accounts, with hand-written events."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from configs import default
from outputs import atomic, formats, manifests
from tests.support import accounts
from tests.support.recomputing import recompute

_BATCH = 8


def _start(workers=2):
  return {'event': 'start', 'decision': {'release': [*range(workers)]}}


def _push(worker, update, *, ends=()):
  """Returns a push event; a push that releases workers commits its update."""
  decision = {'into': update}
  if ends:
    decision |= {'commit': [update], 'release': [*ends]}
  return {
    'event': 'push',
    'worker': worker,
    'examples': _BATCH,
    'decision': decision,
  }


def _leave(worker):
  return {'event': 'leave', 'worker': worker, 'decision': {}}


_ITERATION = [_push(0, 0), _push(1, 0, ends=(0, 1))]


class LostTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('worker leaves in an iteration', [_leave(1)], [(1, 1)]),
    ('worker leaves after its push', [_push(1, 1), _leave(1)], []),
    ('all workers restart', [_start()], [(0, 1), (1, 1)]),
    ('restart after a push', [_push(0, 1), _start()], [(1, 1)]),
    ('two restarts', [_start(), _start()], [(0, 1), (1, 1), (0, 2), (1, 2)]),
  )
  def test_interrupted_iterations_are_lost(self, events, lost):
    actual = accounts.find_lost([_start(), *_ITERATION, *events], 10**6)
    self.assertEqual(actual, lost)

  def test_a_worker_released_at_the_end_of_a_run_starts_no_iteration(self):
    events = [_start(), *_ITERATION, _start()]
    self.assertEqual(accounts.find_lost(events, 2 * _BATCH), [])
    self.assertLen(accounts.find_lost(events, 2 * _BATCH + 1), 2)

  def test_a_worker_released_at_the_end_loses_its_iteration_at_a_rollback(self):
    rollback = {'event': 'rollback', 'time': 2.0, 'updates': 0}
    events = [_start(), *_ITERATION, rollback, _start()]
    self.assertEqual(accounts.find_lost(events, 2 * _BATCH), [(0, 1), (1, 1)])


class ParametersTest(absltest.TestCase):
  def test_a_record_that_cannot_be_computed_again_fails_its_check(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / 'checkpoints').mkdir()
    (folder / 'events.jsonl').touch()
    manifest = {
      'format': formats.RUN_FOLDER,
      **manifests.described(default.get_config().to_dict(), {}),
    }
    atomic.write_object(folder / 'manifest.json', manifest)
    wrong = ValueError('pushes: expected those of workers (0, 1), got (1,).')
    with mock.patch.object(recompute, 'difference', side_effect=wrong):
      first, second = accounts.check_parameters(folder)
    self.assertFalse(first.holds)
    self.assertIn('got (1,)', first.detail)
    self.assertTrue(second.holds)


if __name__ == '__main__':
  absltest.main()
