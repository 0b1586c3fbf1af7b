"""Tests for the cost of departures."""

import pathlib

import numpy as np
from absl.testing import absltest, parameterized

import analysis
from analysis import diagnosing, sentences
from diagnosis import departures
from tests.support import small


def _push(time, worker):
  return {'event': 'push', 'time': time, 'worker': worker, 'examples': 8}


def _run(script, **changed):
  """Returns the folder and the events of a virtual run of four workers."""
  run = small.build(
    small.timing(
      cluster__workers=4,
      cluster__script=script,
      cluster__speed__slowdown=(1.0,),
      epochs=100.0,
      eval_every=100.0,
      **changed,
    )
  )
  summary = run()
  return (
    pathlib.Path(run.files.workdir),
    small.rows(run, 'events.jsonl'),
    summary,
  )


class MeasureTest(parameterized.TestCase):
  def test_a_known_pause_is_the_cost(self):
    """Two workers push each second; one is away for 30 of 90 seconds."""
    events = [{'event': 'start', 'time': 0.0, 'decision': {'release': [0, 1]}}]
    for second in range(1, 31):
      events += [_push(second, 0), _push(second, 1)]
    events.append({'event': 'leave', 'time': 35.0, 'worker': 1})
    events += [_push(second, 0) for second in range(36, 60)]
    events.append({'event': 'join', 'time': 60.0, 'worker': 1})
    for second in range(61, 91):
      events += [_push(second, 0), _push(second, 1)]

    found = departures.measure(events, 2)

    self.assertEqual(found.counts, {1: 1})
    self.assertEqual((found.restarts, found.away_s), (0, 25.0))
    # Together a push takes 60 s / 120, and in the run 90 s / 144.
    self.assertAlmostEqual(found.share.value, 0.5 / (90 / 144), delta=0.001)
    self.assertBetween(found.share.value, found.share.low, found.share.high)
    (verdict,) = sentences.on_departures(found)
    self.assertStartsWith(
      verdict.text, 'worker 1 left, for 25 s in the median; without departures'
    )

  @parameterized.parameters('bsp', 'asp')
  def test_the_cost_is_that_of_a_run_without_departures(self, scheme):
    fields = {'sync__name': scheme}
    _, _, whole = _run((), **fields)
    span_s = whole['time_s']
    script = []
    for k in range(5):
      at = (0.1 + 0.2 * k) * span_s
      script += [(at, 'leave', k % 4), (at + 0.12 * span_s, 'join', k % 4)]
    path, events, interrupted = _run(tuple(script), **fields)

    found = departures.measure(events, 4)

    ratio = whole['time_s'] / interrupted['time_s']
    self.assertLess(ratio, 0.95)
    self.assertAlmostEqual(found.share.value, ratio, delta=0.03)
    self.assertEqual(sum(found.counts.values()), 5)
    verdicts = diagnosing.diagnose_run(analysis.read(path))
    self.assertRegex(
      '\n'.join(each.sentence for each in verdicts),
      r'Workers left 5 times \(worker 0 2 times\), for .* of its time',
    )

  def test_no_verdict_without_departures(self):
    _, events, _ = _run(())
    found = departures.measure(events, 4)
    self.assertEqual((found.counts, found.restarts), ({}, 0))
    self.assertEqual(sentences.on_departures(found), [])

  def test_departures_at_the_end_do_not_count(self):
    events = [_push(float(second), 0) for second in range(1, 50)]
    events.append({'event': 'leave', 'time': 49.5, 'worker': 0})
    self.assertEqual(departures.measure(events, 1).counts, {})

  def test_late_workers_and_restarts_are_told_from_departures(self):
    events = [{'event': 'start', 'time': 0.0, 'decision': {'release': [0]}}]
    events += [_push(float(second), 0) for second in range(1, 11)]
    events.append({'event': 'join', 'time': 10.0, 'worker': 1})
    for second in range(11, 40):
      events += [_push(float(second), 0), _push(float(second), 1)]
    events.append(
      {'event': 'start', 'time': 45.0, 'decision': {'release': [0, 1]}}
    )
    events += [_push(46.0, 0), _push(46.0, 1)]

    found = departures.measure(events, 2)

    self.assertEqual((found.counts, found.restarts), ({}, 1))
    self.assertIsNone(found.away_s)
    (verdict,) = sentences.on_departures(found)
    self.assertStartsWith(
      verdict.text, 'all continued from an earlier state once;'
    )

  def test_too_little_time_with_all_workers_gives_no_estimate(self):
    events = [_push(float(second), 0) for second in range(1, 10)]
    events.append({'event': 'leave', 'time': 9.0, 'worker': 1})
    events += [_push(float(second), 0) for second in range(10, 100)]
    found = departures.measure(events, 2)
    self.assertIsNone(found.share)
    (verdict,) = sentences.on_departures(found)
    self.assertIn('together too briefly', verdict.text)
    self.assertEqual(departures.measure([], 2).counts, {})

  def test_equal_parts_have_a_narrow_interval(self):
    events = [_push(float(second), 0) for second in range(1, 201)]
    events.append({'event': 'leave', 'time': 200.0, 'worker': 0})
    events.append({'event': 'join', 'time': 300.0, 'worker': 0})
    events += [_push(float(second), 0) for second in range(301, 501)]
    share = departures.measure(events, 1).share
    np.testing.assert_allclose(share, [0.8, 0.8, 0.8], atol=0.01)


if __name__ == '__main__':
  absltest.main()
