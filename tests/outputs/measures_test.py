"""Tests for outputs.measures and outputs.thresholds, and what runs say."""

import json
import pickle

import numpy as np
from absl.testing import absltest, parameterized

from analysis import runs
from outputs import thresholds
from outputs.accounting import PHASES
from outputs.measures import Measures, Spread
from outputs.thresholds import Reached
from tests.support import small

_SHARES = {'median_s': 0.5, 'p95_s': 0.95}


def _quantiles(values):
  """Returns the quantiles by NumPy."""
  return {
    name: np.quantile(values, share, method='inverted_cdf')
    for name, share in _SHARES.items()
  }


class SpreadTest(parameterized.TestCase):
  def _assert_near(self, got, values):
    for name, expected in _quantiles(values).items():
      self.assertAlmostEqual(got[name], expected, delta=0.01 * expected)

  @parameterized.product(count=[1, 2, 19, 20, 100, 9000], seed=[0, 1])
  def test_quantiles_are_numpys_to_one_percent(self, count, seed):
    rng = np.random.default_rng(seed)
    workers = rng.integers(0, 3, count)
    values = rng.lognormal(-3, 2, (count, 2))
    values[rng.random((count, 2)) < 0.2] = 0
    spread = Spread(2)
    for worker, row in zip(workers, values, strict=True):
      spread.add((int(worker), *row.tolist()))

    self.assertEqual(spread.rows(), sorted(set(workers.tolist())))
    for column in range(2):
      self._assert_near(spread.quantiles(column), values[:, column])
      for worker in spread.rows():
        own = values[workers == worker, column]
        self._assert_near(spread.quantiles(column, worker), own)

  def test_equal_numbers_are_exact(self):
    spread = Spread(1)
    for _ in range(5000):
      spread.add((0, 0.06))
    self.assertAlmostEqual(spread.quantiles(0)['p95_s'], 0.06, places=14)

  @parameterized.parameters(0, 3, 10, 100)
  def test_zeros_count_that_were_not_added(self, zeros):
    values = [0.5, 0.25, 4.0, 2.0]
    spread = Spread(1)
    for value in values:
      spread.add((0, value))
    found = spread.quantiles(0, zeros=zeros)
    self._assert_near(found, values + [0.0] * zeros)

  def test_nothing_has_no_quantiles(self):
    self.assertEqual(Spread(1).quantiles(0), dict.fromkeys(_SHARES))


class BandwidthTest(parameterized.TestCase):
  @parameterized.parameters(0.001, 0.3, 7.0)
  def test_no_byte_is_lost_however_long_it_takes(self, length_s):
    measures, total = Measures(), 0
    for step in range(1000):
      total += step
      measures.add_bytes((step + 1) * length_s, total)
    found = measures.summary(1000 * length_s + 1e-9)['bandwidth']
    self.assertBetween(len(found['Bps']), 1, 257)
    whole = found['window_s'] * sum(found['Bps'][:-1])
    last_s = 1000 * length_s + 1e-9
    last_s -= found['window_s'] * (len(found['Bps']) - 1)
    self.assertAlmostEqual((whole + last_s * found['Bps'][-1]) / total, 1)


class ThresholdsTest(absltest.TestCase):
  def test_a_loss_is_reached_after_ten_in_a_row(self):
    found = thresholds.make((), (0.5,))
    losses = [0.4] * 9 + [0.5] + [0.4] * 12
    for number, loss in enumerate(losses):
      found.add_loss(
        loss, Reached(float(number), number, 2 * number, 3 * number)
      )
    self.assertEqual(
      found.summary()['to_loss'],
      {
        '0.5': {'time_s': 19.0, 'iterations': 19, 'updates': 38, 'examples': 57}
      },
    )

  def test_a_measure_is_reached_at_its_first_evaluation_that_is_as_good(self):
    values = {'perplexity': (8, 4.5), 'score': (8.5,), 'bits': ()}
    found = thresholds.make((0.5,), (), values)
    for number, value in enumerate([9.0, 8.0, 9.0, 7.0, 5.0]):
      now = Reached(float(number), number, number, number)
      figures = {
        'accuracy': value / 20,
        'perplexity': value,
        'score': 17 - value,
      }
      found.add_evaluation(figures, ['perplexity'], now)
    reached = {'time_s': 1.0, 'iterations': 1, 'updates': 1, 'examples': 1}
    blank = dict.fromkeys(reached)
    summary = found.summary()
    self.assertEqual(summary['to_perplexity'], {'8': reached, '4.5': blank})
    self.assertEqual(summary['to_score'], {'8.5': reached})
    self.assertEqual(summary['time_to'], {'0.5': None})
    self.assertNotIn('to_bits', summary)

  def test_a_threshold_that_was_not_reached_is_null(self):
    found = thresholds.make((0.9,), (0.5,)).summary()
    blank = dict.fromkeys(('time_s', 'iterations', 'updates', 'examples'))
    self.assertEqual(found['to_accuracy'], {'0.9': blank})
    self.assertEqual(found['to_loss'], {'0.5': blank})


_ROWS = [
  (1.0, 0.2),
  (3.0, 0.4),
  (4.0, None),
  (7.0, 0.8),
  (9.0, 0.5),
  (10.0, 0.9),
]


class InterpolationTest(parameterized.TestCase):
  """Accuracies at times; that of one evaluation was left out."""

  def _passed(self, level, rows=_ROWS, *, falls=False):
    evaluations = [{'time': time, 'score': value} for time, value in rows]
    return tuple(
      thresholds.interpolate(evaluations, 'score', level, falls=falls)
    )

  @parameterized.parameters(0.25, 0.4, 0.41, 0.7, 0.8, 0.85)
  def test_a_level_is_passed_on_the_line_between_two_evaluations(self, level):
    rising = [row for row in _ROWS if row != (9.0, 0.5) and row[1] is not None]
    if level > 0.8:  # The line from the evaluation that went back.
      rising = [(9.0, 0.5), (10.0, 0.9)]
    times, values = zip(*rising, strict=True)
    expected_s = np.interp(level, values, times)
    steps_s = {0.25: 2.0, 0.4: 2.0, 0.85: 1.0}
    time_s, resolution_s = self._passed(level)
    self.assertAlmostEqual(time_s, expected_s)
    self.assertEqual(resolution_s, steps_s.get(level, 4.0))
    mirrored = [(time, value and -value) for time, value in _ROWS]
    falling = self._passed(-level, mirrored, falls=True)
    self.assertEqual(falling, (time_s, resolution_s))

  def test_an_evaluation_exactly_at_the_level_has_its_own_time(self):
    rows = [(0.1, 0.1), (0.3, 0.7), (0.5, 0.9)]
    self.assertEqual(self._passed(0.7, rows)[0], 0.3)

  def test_before_the_first_evaluation_nothing_is_known(self):
    self.assertEqual(self._passed(0.1), (1.0, 1.0))
    self.assertEqual(self._passed(0.1, _ROWS[2:]), (7.0, 7.0))

  def test_a_level_that_was_never_reached_has_no_time(self):
    self.assertEqual(self._passed(0.95), (None, None))
    self.assertEqual(self._passed(0.1, []), (None, None))

  def test_two_evaluations_at_one_moment_have_its_time(self):
    rows = [(2.0, 0.1), (2.0, 0.9)]
    self.assertEqual(self._passed(0.5, rows), (2.0, 0.0))


class RunTest(parameterized.TestCase):
  @parameterized.parameters(
    {'sync__name': 'bsp'},
    {'sync__name': 'asp'},
    {'sync__name': 'elastic', 'cluster__network__server_up_Bps': (2e4,)},
    {'sync__name': 'bsp', 'route__name': 'ring'},
  )
  def test_phases_and_gaps_are_those_of_timeline_and_events(self, **changed):
    run = small.build(small.timing(**changed))
    summary = run()

    iterations = _iterations(run)
    for column, phase in enumerate(PHASES):
      together = [row[column] for rows in iterations.values() for row in rows]
      self._assert_near(summary['breakdown'][phase], together)
      for worker, rows in iterations.items():
        own = [row[column] for row in rows]
        found = summary['worker_breakdown'][str(worker)][phase]
        self._assert_near(found, own)
    updates, pushes = _applied(run)
    for name, times in (('updates', updates), ('pushes', pushes)):
      gaps = np.diff(times)
      self._assert_near(summary['gaps'][name], gaps)
      zeros = float(np.mean(gaps == 0))
      self.assertAlmostEqual(summary['gaps'][name]['zero_share'], zeros)

  def _assert_near(self, got, values):
    for name, expected in _quantiles(values).items():
      self.assertAlmostEqual(got[name], expected, delta=0.01 * expected + 1e-9)

  def test_bytes_of_all_windows_are_all_bytes(self):
    _, summary = small.execute(epochs=1.0)
    found = summary['bandwidth']
    sizes = [rate * found['window_s'] for rate in found['Bps'][:-1]]
    start = found['window_s'] * len(sizes)
    sizes.append(found['Bps'][-1] * (summary['time_s'] - start))
    self.assertAlmostEqual(sum(sizes), summary['bytes'], places=3)

  def test_how_far_a_run_was_at_an_accuracy_and_a_loss(self):
    run, summary = small.execute(
      epochs=4.0,
      eval_every=0.25,
      log_every=1,
      time_to=(0.3,),
      time_to_loss=(2.0, 1e-9),
      optimizer__learning_rate=0.1,
      cluster__workers=1,
      cluster__speed__slowdown=(1.0,),
    )
    rows = small.rows(run, 'metrics.jsonl')
    first = next(row for row in rows if (row['accuracy'] or 0) >= 0.3)
    fields = ('iterations', 'updates', 'examples')
    self.assertEqual(
      summary['to_accuracy']['0.3'],
      {'time_s': first['time']} | {name: first[name] for name in fields},
    )
    below = [row['loss'] < 2.0 for row in rows if row['kind'] == 'log']
    tenth = next(k for k in range(10, 99) if all(below[k - 10 : k]))
    reached = summary['to_loss']['2.0']
    self.assertEqual(reached['iterations'], tenth)
    self.assertEqual(reached['updates'], tenth - 1)
    self.assertEqual(reached['examples'], 8 * (tenth - 1))
    self.assertIsNone(summary['to_loss']['1e-09']['time_s'])

  def test_levels_of_all_measures_of_a_run_are_interpolated(self):
    run, summary = small.execute(
      epochs=4.0,
      eval_every=0.25,
      eval_loss=True,
      time_to=(0.3, 1.0),
      time_to_measure__test_loss=(2.0,),
      optimizer__learning_rate=0.1,
    )
    rows = small.rows(run, 'metrics.jsonl')
    rows = [row for row in rows if row['kind'] == 'evaluation']
    found = summary['time_to_interpolated']
    self.assertEqual([*found], ['accuracy', 'test_loss'])
    self.assertEqual(
      found['accuracy'].pop('1.0'), {'time_s': None, 'resolution_s': None}
    )
    for name, level, sign in (('accuracy', 0.3, 1), ('test_loss', 2.0, -1)):
      at = next(
        k for k, row in enumerate(rows) if sign * row[name] >= sign * level
      )
      times = [rows[k]['time'] for k in (at - 1, at)]
      values = [sign * rows[k][name] for k in (at - 1, at)]
      passed = found[name].pop(str(level))
      self.assertAlmostEqual(
        passed['time_s'], np.interp(sign * level, values, times)
      )
      self.assertEqual(passed['resolution_s'], times[1] - times[0])

  def test_outputs_that_are_off_change_no_others(self):
    whole = small.build(small.timing())
    left_out = {f'outputs__{name}': False for name in _OUTPUTS}
    bare = small.build(small.timing(**left_out))
    expected, got = small.timeless(whole()), small.timeless(bare())
    self.assertEqual(got, expected)
    names = [path.name for path in bare.files.workdir.iterdir()]
    self.assertContainsSubset(['metrics.jsonl', 'summary.json'], names)
    for name in ('trace.json', 'events.jsonl'):
      self.assertNotIn(name, names)
    self.assertEmpty([name for name in names if 'tfevents' in name])

  def test_measures_go_through_a_checkpoint(self):
    measures = Measures()
    for step in range(100):
      measures.add_iteration(step % 3, dict.fromkeys(PHASES, 0.1 * step))
      measures.add_update(float(step), 1)
      measures.add_bytes(float(step), 10 * step)
    again = pickle.loads(pickle.dumps(measures))
    self.assertEqual(
      json.dumps(again.summary(99.0)), json.dumps(measures.summary(99.0))
    )


_OUTPUTS = ('timeline', 'events', 'board')


def _iterations(run):
  """Seconds by phase of each worker's iterations but the last, of its spans."""
  trace = json.loads((run.files.workdir / 'trace.json').read_text())
  pushes = [r for r in small.rows(run, 'events.jsonl') if r['event'] == 'push']
  released = {}
  told = list(runs.read_events(run.files.workdir))
  for row in told[:-1]:  # No iteration follows the last one.
    for worker in row['decision'].get('release', ()):
      released.setdefault(worker, []).append(row['time'])
  found = {}
  for worker in {row['worker'] for row in pushes}:
    times = released[worker]
    rows = [dict.fromkeys(PHASES, 0.0) for _ in times]
    for span in trace:
      if span['ph'] == 'X' and span['tid'] == worker:
        middle = (span['ts'] + span['dur'] / 2) / 1e6
        into = np.searchsorted(times, middle) - 1
        rows[into][span['name']] += span['dur'] / 1e6
    found[worker] = [tuple(row.values()) for row in rows[:-1]]
  return found


def _applied(run):
  """Times at which updates were applied, and the pushes in them."""
  sums, updates, pushes = {}, [], []
  for row in small.rows(run, 'events.jsonl'):
    said = row.get('decision', {})
    if 'into' in said:
      sums[said['into']] = sums.get(said['into'], 0) + 1
    for update in said.get('commit', ()):
      updates.append(row['time'])
      pushes += [row['time']] * sums[update]
  return updates, pushes


if __name__ == '__main__':
  absltest.main()
