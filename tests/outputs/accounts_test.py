"""Tests for what a run counts: times, staleness, examples, rows, schedules."""

import contextlib
import io
import json
import re

from absl.testing import absltest, parameterized

from outputs import console
from tests.support import small

_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp', 'quorum')


class AccountTest(parameterized.TestCase):
  def test_bsp_waits_for_the_slowest(self):
    run, summary = small.execute(
      epochs=1.0, cluster__speed__slowdown=(1.0, 2.0, 4.0)
    )

    # An iteration of (1, 2, 4) times 0.02 + 8 * 0.0025 = 0.04 s; 8 of them.
    self.assertAlmostEqual(summary['virtual_s'], 8 * 0.16)
    self.assertAlmostEqual(summary['waiting_share'], (3 + 2 + 0) / 12)
    self.assertAlmostEqual(summary['goodput'], (1 + 2 + 4) / 12)
    self.assertEqual((summary['iterations'], summary['updates']), (24, 8))
    self.assertEqual(summary['staleness'], {'0': 24})
    self.assertEqual(summary['bytes'], 2 * 24 * small.size_bytes(run))
    self.assertEqual(summary['padding_share'], 0)

  def test_asp_never_waits_and_its_staleness_is_counted(self):
    _, summary = small.execute(
      sync__name='asp',
      epochs=0.5,
      cluster__speed__fixed_s=0.25,
      cluster__speed__per_example_s=0.0,
      cluster__speed__slowdown=(1.0, 2.0, 4.0),
    )

    # Pushes at 1; 2, 2; 3; 4, 4, 4; 5; 6, 6; 7 and 8 quarters of a second
    # are stale by 0; 0, 2; 1; 0, 2, 6; 2; 0, 3; 1 and 0 versions.
    self.assertEqual(summary['waiting_share'], 0)
    self.assertEqual(summary['iterations'], 12)
    self.assertEqual(
      summary['staleness'], {'0': 5, '1': 2, '2': 3, '3': 1, '6': 1}
    )

  @parameterized.parameters(*_SCHEMES)
  def test_all_time_is_spent_in_some_phase(self, name):
    _, summary = small.execute(
      sync__name=name,
      cluster__network__server_up_Bps=(1e6,),
      cluster__network__worker_latency_s=(0.01, 0.0, 0.02),
      route__server__servers=2,
    )
    self.assertAlmostEqual(
      sum(summary['worker_seconds'].values()), 3 * summary['virtual_s']
    )
    self.assertEqual(summary['compilations'], 0)

  @parameterized.parameters(*_SCHEMES)
  def test_every_example_is_used_once_or_listed(self, name):
    run, summary = small.execute(
      sync__name=name,
      cluster__script=((0.2, 'leave', 0), (0.7, 'join', 0), (0.9, 'leave', 2)),
    )

    outstanding = sum(stop - start for start, stop in summary['outstanding'])
    used = summary['examples'] + summary['examples_pending']
    issued = run.runtime.coordinator.issued
    self.assertEqual(used + outstanding, issued)
    self.assertGreaterEqual(summary['examples'], 2 * 192)

  def _table(self, run, summary):
    """Returns the table that ends a run."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
      console.Console(target=1, clock='virtual').table(run.name, summary)
    return output.getvalue()

  def test_the_table_has_shares_that_add_up_and_iterations_that_are_lost(self):
    run, summary = small.execute(
      sync__name='asp',
      cluster__network__worker_up_Bps=(3e5,),
      cluster__script=((0.2, 'leave', 0), (0.7, 'join', 0)),
    )
    table = self._table(run, summary)
    share = r'{} +│ +([\d.]+)% '
    shares = [
      float(re.search(share.format(name), table)[1])
      for name in ('goodput', 'transfer share', 'waiting share')
    ]
    seconds = summary['worker_seconds']
    moving = (seconds['pull'] + seconds['push']) / sum(seconds.values())
    self.assertAlmostEqual(shares[1], 100 * moving, delta=0.06)
    self.assertGreater(moving, 0.05)
    self.assertBetween(sum(shares), 90, 100.15)  # One iteration is lost.
    self.assertLen(summary['lost'], 1)
    self.assertRegex(table, r'lost iterations +│ +1 ')
    self.assertNotIn('dropped', table)

  def test_dropped_pushes_are_listed_and_their_examples_issued_again(self):
    run, summary = small.execute(
      sync__name='quorum',
      sync__quorum__grace=0.0,
      sync__quorum__late='drop',
      cluster__speed__slowdown=(1.0, 1.0, 2.5),
      epochs=1.0,
    )

    # A round takes one iteration of the fast workers; worker 2 is late after
    # 2.5 of them, waits for the end of the third, and so on.
    events = small.rows(run, 'events.jsonl')
    dropped = [
      row
      for row in events
      if row['event'] == 'push' and 'into' not in row['decision']
    ]
    self.assertEqual({row['worker'] for row in dropped}, {2})
    self.assertEqual(
      [
        (each['worker'], each['iteration'], each['time'])
        for each in summary['dropped']
      ],
      [(2, n, row['time']) for n, row in enumerate(dropped)],
    )
    self.assertEqual(summary['lost'], [])
    self.assertLen(dropped, 12 // 3)
    self.assertEqual(summary['iterations'], 24 + len(dropped))
    self.assertEqual(
      summary['iterations'],
      len([row for row in events if row['event'] == 'push']),
    )
    table = self._table(run, summary)
    self.assertRegex(table, rf'dropped pushes +│ +{len(dropped)} ')
    self.assertNotIn('lost', table)
    self.assertEqual(summary['examples'], 192)
    outstanding = sum(stop - start for start, stop in summary['outstanding'])
    issued = run.runtime.coordinator.issued
    self.assertEqual(192 + outstanding, issued)

  def test_the_timeline_is_one_chrome_trace(self):
    run, summary = small.execute(epochs=1.0)

    trace = json.loads((run.files.workdir / 'trace.json').read_text())
    names = [e['args']['name'] for e in trace if e['ph'] == 'M']
    self.assertEqual(names, ['worker 0', 'worker 1', 'worker 2'])
    spans = [e for e in trace if e['ph'] == 'X']
    total_s = sum(event['dur'] for event in spans) / 1e6
    self.assertAlmostEqual(total_s, 3 * summary['virtual_s'])

  def test_schedules_count_examples_of_the_whole_cluster(self):
    run, _ = small.execute(
      epochs=2.0,
      schedule__name='step',
      schedule__step__epochs=(0.5, 1.0),
      sync__name='asp',
    )
    for row in small.rows(run, 'metrics.jsonl'):
      drops = (row['epoch'] >= 0.5) + (row['epoch'] >= 1.0)
      self.assertAlmostEqual(row['learning_rate'], 0.01 * 0.1**drops)

  def test_counting_updates_makes_asynchronous_rates_drop_early(self):
    run, _ = small.execute(
      epochs=1.0,
      log_every=1,
      schedule__name='step',
      schedule__counts='updates',
      schedule__step__epochs=(0.5,),
      sync__name='asp',
    )
    rows = small.rows(run, 'metrics.jsonl')
    early = [row['epoch'] for row in rows if row['learning_rate'] < 0.01]
    self.assertAlmostEqual(min(early), 0.5 / 3)

  def test_time_to_an_accuracy_is_its_first_evaluation(self):
    run, summary = small.execute(
      epochs=4.0,
      eval_every=0.25,
      time_to=(0.3, 1.0),
      optimizer__learning_rate=0.1,
    )

    evaluations = [
      row
      for row in small.rows(run, 'metrics.jsonl')
      if row['kind'] == 'evaluation'
    ]
    reached = [row['time'] for row in evaluations if row['accuracy'] >= 0.3]
    self.assertEqual(summary['time_to'], {'0.3': reached[0], '1.0': None})
    self.assertEqual(summary['final_accuracy'], evaluations[-1]['accuracy'])


if __name__ == '__main__':
  absltest.main()
