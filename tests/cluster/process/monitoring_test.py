"""Tests of the coordinator's metrics, over HTTP."""

import json
import urllib.error
import urllib.request

from absl.testing import absltest, parameterized

from cluster.process import monitoring
from cluster.process.roles import free_ports
from tests.support import processes

_STATUS = monitoring.Status(7, 3, 24, 8, 999, 2, 1, 0.5, True)


def _get(port, path):
  """Returns code and text of an answer."""
  url = f'http://127.0.0.1:{port}{path}'
  try:
    with urllib.request.urlopen(url, timeout=10) as answer:
      return answer.status, answer.read().decode()
  except urllib.error.HTTPError as error:
    with error:
      return error.code, error.read().decode()


def _values(text):
  """Returns the values of metrics in Prometheus' format, by name."""
  rows = [line.split() for line in text.splitlines() if line[0] != '#']
  return {name: float(value) for name, value in rows}


class MonitorTest(absltest.TestCase):
  def _monitor(self, status):
    monitor = monitoring.Monitor('127.0.0.1', 0, lambda: status)
    self.addCleanup(monitor.close)
    return monitor.port

  def test_metrics_have_names_types_and_values(self):
    code, text = _get(self._monitor(_STATUS), '/metrics')
    self.assertEqual(code, 200)
    values = _values(text)
    self.assertEqual(values['syncopate_iterations_total'], 7)
    self.assertEqual(values['syncopate_lost_examples_total'], 8)
    self.assertEqual(values['syncopate_idle_seconds'], 0.5)
    for name in values:
      kind = 'counter' if name.endswith('_total') else 'gauge'
      self.assertIn(f'# TYPE {name} {kind}\n', text)

  def test_health_follows_the_event_loop(self):
    code, text = _get(self._monitor(_STATUS), '/healthz')
    self.assertEqual((code, json.loads(text)['alive']), (200, True))
    dead = _STATUS._replace(is_alive=False)
    code, text = _get(self._monitor(dead), '/healthz')
    self.assertEqual((code, json.loads(text)['alive']), (503, False))

  def test_other_paths_do_not_exist(self):
    self.assertEqual(_get(self._monitor(_STATUS), '/config')[0], 404)


class RunTest(processes.TestCase, parameterized.TestCase):
  @parameterized.parameters('ring', 'server')
  def test_a_run_serves_metrics_while_it_trains(self, route):
    (port,) = free_ports(1)
    with processes.launch(
      workers=2,
      servers=0 if route == 'ring' else 1,
      model=False,
      route__name=route,
      outputs__metrics_port=port,
      epochs=50.0,
    ) as launch:
      launch.reach(64)
      code, text = _get(port, '/metrics')
      values = _values(text)
      self.assertEqual(code, 200)
      self.assertEqual(values['syncopate_workers_alive'], 2)
      self.assertGreaterEqual(values['syncopate_examples_total'], 64)
      self.assertGreater(values['syncopate_delivered_bytes_total'], 0)
      epoch = 0 if route == 'ring' else -1
      self.assertEqual(values['syncopate_membership_epoch'], epoch)
      self.assertEqual(_get(port, '/healthz')[0], 200)


if __name__ == '__main__':
  absltest.main()
