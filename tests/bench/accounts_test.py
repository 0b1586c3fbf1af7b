"""Tests of what must hold of any run, by events made by hand."""

from absl.testing import absltest, parameterized

from bench import accounts

_BATCH = 8


def _start(workers=2):
  return {'event': 'start', 'decision': {'release': [*range(workers)]}}


def _push(worker, update, *, ends=()):
  """Returns a push; if others are released, then it ends its update."""
  said = {'into': update}
  if ends:
    said |= {'commit': [update], 'release': [*ends]}
  return {
    'event': 'push',
    'worker': worker,
    'examples': _BATCH,
    'decision': said,
  }


def _leave(worker):
  return {'event': 'leave', 'worker': worker, 'decision': {}}


_ITERATION = [_push(0, 0), _push(1, 0, ends=(0, 1))]


class LostTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('who leaves in an iteration', [_leave(1)], [(1, 1)]),
    ('but not who has pushed', [_push(1, 1), _leave(1)], []),
    ('all that are started again', [_start()], [(0, 1), (1, 1)]),
    ('but who has pushed', [_push(0, 1), _start()], [(1, 1)]),
    ('twice', [_start(), _start()], [(0, 1), (1, 1), (0, 2), (1, 2)]),
  )
  def test_lost_are(self, events, lost):
    found = accounts.lost_of([_start(), *_ITERATION, *events], 10**6)
    self.assertEqual(found, lost)

  def test_a_worker_released_at_the_end_of_a_run_starts_no_iteration(self):
    events = [_start(), *_ITERATION, _start()]
    self.assertEqual(accounts.lost_of(events, 2 * _BATCH), [])
    self.assertLen(accounts.lost_of(events, 2 * _BATCH + 1), 2)


if __name__ == '__main__':
  absltest.main()
