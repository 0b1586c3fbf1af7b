"""Tests for the links to servers: rows of windows, and a slow host in a lab."""

import json
import pathlib
import subprocess
import tempfile
import types

import pytest
from absl.testing import absltest, parameterized

import analysis
from analysis import diagnosing
from bench import clusters
from cluster.network.messages import TrafficReport
from cluster.parameter_server.links import ServerLinkLog
from configs import timing
from diagnosis import server_links
from outputs.accounting import Accounting
from tests.support import requires

_HOSTS = ['a', 'b', 'c']


class RowsTest(absltest.TestCase):
  """Three workers with a server each; b sends and receives at a tenth."""

  def setUp(self):
    super().setUp()
    self.rows, self.accounting = [], Accounting()
    self.links = self._make()
    self.sent = {(k, n): (0, 0.0) for k in range(3) for n in range(3)}

  def _make(self, **changed):
    recorder = types.SimpleNamespace(
      accounting=self.accounting, record_server_links=self.rows.append
    )
    find_hosts = changed.pop('find_hosts', lambda: (_HOSTS, _HOSTS))
    counts = {'num_workers': 3, 'num_servers': 3, **changed}
    return ServerLinkLog(recorder, **counts, find_hosts=find_hosts)

  def _iterate(self, time, workers=(0, 1, 2)):
    """An iteration of half a second, .4 of which are transfers."""
    for worker in workers:
      for phase, seconds in {'pull': 0.1, 'compute': 0.1, 'push': 0.3}.items():
        self.accounting.seconds[phase] += seconds
      for server in range(3):
        sent, busy_s = self.sent[worker, server]
        is_slow = 1 in (worker, server) and worker != server
        sent, busy_s = sent + 100_000, busy_s + (0.2 if is_slow else 0.02)
        self.sent[worker, server] = sent, busy_s
      rows = [(n, *self.sent[worker, n]) for n in range(3)]
      self.links.take(worker, TrafficReport(rows))
      self.links.push(time, [*workers])

  def test_a_row_compares_hosts_each_second(self):
    for k in range(9):
      self._iterate(0.5 * k)

    json.dumps(self.rows)
    self.assertEqual([row['time'] for row in self.rows], [1, 2, 3, 4])
    for row in self.rows:
      self.assertEqual((row['did'], row['iterations']), ('servers', 2))
      self.assertEqual(row['since'], row['time'] - 1)
      self.assertAlmostEqual(row['exposed'], 0.8)
      slowness = {each['host']: each['slowness'] for each in row['rates']}
      self.assertAlmostEqual(slowness.pop('b'), 10)
      self.assertEqual(slowness, {'a': 1, 'c': 1})
      self.assertAlmostEqual(row['rates'][1]['Bps'], 500_000)

  def test_no_row_spans_a_change_of_members(self):
    for k in range(3):
      self._iterate(0.5 * k)
    self.rows.clear()
    self.links.clear()
    for k in range(3):
      self._iterate(1.5 + 0.5 * k, workers=(0, 2))

    (row,) = self.rows
    self.assertEqual((row['since'], row['time']), (1.5, 2.5))
    self.assertEqual(row['iterations'], 2)

  def test_a_window_without_all_reports_is_longer(self):
    self._iterate(0.0)
    for k in range(1, 4):  # None of worker 2.
      self.links.take(0, TrafficReport([(n, 10**6 * k, 1.0) for n in range(3)]))
      for _ in range(3):
        self.links.push(1.0 * k, [0, 1, 2])
    self.assertEmpty(self.rows)

  def test_hosts_that_cannot_be_compared_have_no_rows(self):
    for changed in (
      {'num_servers': 1},
      {'num_workers': server_links.MOST, 'num_servers': 3},
      {'num_workers': 2, 'num_servers': server_links.MOST_SERVERS + 1},
      {'find_hosts': lambda: (_HOSTS, [])},  # A server is missing.
      {'find_hosts': lambda: (['a'] * 3, ['a'] * 3)},
    ):
      self.links = self._make(**changed)
      for k in range(5):
        self._iterate(0.5 * k)
      self.links.push(9.0, [])
      self.assertEmpty(self.rows, changed)


class LabTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    requires.lab()

  def test_a_bad_nic_is_found_behind_a_server_in_each_worker(self):
    self._check_nic(is_slow=True)

  @pytest.mark.soak
  def test_no_nic_is_named_if_all_are_good(self):
    self._check_nic(is_slow=False)

  def _check_nic(self, *, is_slow):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    links = folder / 'links.json'
    rates = {'up': '20mbit', 'down': '20mbit'} if is_slow else {}
    links.write_text(json.dumps({'hosts': {'host1': rates}}))
    fields = {
      **timing.fields(
        workers=3,
        iterations=60,
        size_bytes=500_000,
        batch=16,
        compute_s=0.1 if is_slow else 0.2,
      ),
      'sync.name': 'bsp',
      'optimizer.sgd.momentum': 0.0,
      'cluster.timeout_s': 20.0,
      'cluster.speed.injected': True,
      'route.server.mirror_s': 0.0,
    }
    words = clusters.command(
      folder / 'run',
      'configs/default.py',
      fields,
      workers=3,
      servers=0,
      dedicated=False,
      link='200mbit',
      options=[f'--links={links}'],
    )
    done = subprocess.run(
      words, capture_output=True, text=True, timeout=120, check=False
    )
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])

    found = diagnosing.diagnose_run(analysis.read(folder / 'run'))

    rows = [*analysis.read(folder / 'run').link_rows]
    self.assertGreater(len(rows), 5)
    hosts = [each for each in found if each.text.startswith('link of host')]
    warned = [
      row['host']
      for row in analysis.read(folder / 'run').read_event_rows()
      if row['event'] == 'straggler' and 'host' in row
    ]
    if not is_slow:
      self.assertEmpty(hosts)
      self.assertEmpty(warned)
      return
    (verdict,) = hosts
    self.assertRegex(verdict.text, r'link of host [\d.]+ \(worker 1\): a conn')
    self.assertLess(verdict.share.value, 0.8)
    self.assertEqual(warned, [verdict.name])


if __name__ == '__main__':
  absltest.main()
