"""Tests of the coordinator's metrics, over HTTP."""

import contextlib
import errno
import json
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.process import monitoring
from cluster.process.roles import free_ports
from tests.support import processes, requires, small
from tests.support.streams import wait_until

_STATUS = monitoring.Status(7, 3, 24, 5, 8, 999, 2, 1, 0.5, True)


def _get(port, path, host='127.0.0.1'):
  """Returns code and text of an answer."""
  url = f'http://{host}:{port}{path}'
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
    self.assertEqual(values['syncopate_dropped_examples_total'], 5)
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


class StrangersTest(absltest.TestCase):
  def _monitor(self, host='127.0.0.1'):
    monitor = monitoring.Monitor(host, 0, lambda: _STATUS)
    self.addCleanup(monitor.close)
    return monitor.port

  def _connect(self, port):
    sock = socket.create_connection(('127.0.0.1', port), 10)
    self.addCleanup(sock.close)
    return sock

  def test_the_number_of_connections_is_limited(self):
    port, num_threads = self._monitor(), threading.active_count()
    socks = [self._connect(port) for _ in range(100)]
    num_open = len(socks)
    for sock in reversed(socks):  # The first ones are served.
      sock.settimeout(2.0)
      try:
        ended = sock.recv(1) == b''
      except ConnectionResetError:
        ended = True
      except TimeoutError:
        break
      self.assertTrue(ended)
      num_open -= 1
    self.assertBetween(num_open, 1, 32)
    self.assertLessEqual(threading.active_count() - num_threads, num_open + 1)
    for sock in socks:
      sock.close()
    wait_until(lambda: threading.active_count() <= num_threads + 1)
    self.assertEqual(_get(port, '/metrics')[0], 200)

  def test_a_client_that_sends_slowly_is_cut_off(self):
    self.enter_context(mock.patch.object(monitoring, '_LIMIT_S', 0.3))
    sock = self._connect(self._monitor())
    sock.sendall(b'GET /metrics HTTP/1.1\r\n')
    end = time.monotonic() + 10
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
      sock.settimeout(0.05)
      while time.monotonic() < end:
        sock.sendall(b'X: y\r\n')
        with contextlib.suppress(TimeoutError):
          self.assertEqual(sock.recv(1000), b'')
          break
    self.assertLess(time.monotonic(), end)

  def test_a_server_without_descriptors_tries_again_after_pauses(self):
    port = self._monitor()
    with mock.patch.object(socket.socket, 'accept') as accept:
      accept.side_effect = OSError(errno.EMFILE, 'Too many open files')
      self._connect(port)
      time.sleep(0.5)
      self.assertBetween(accept.call_count, 1, 10)
    self.assertEqual(_get(port, '/metrics')[0], 200)

  def test_hosts_of_ipv6_serve_metrics(self):
    requires.host(socket.has_dualstack_ipv6(), 'There is no IPv6.')
    code, _ = _get(self._monitor('::1'), '/metrics', '[::1]')
    self.assertEqual(code, 200)


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

  def test_a_taken_port_may_become_free_and_is_named(self):
    """Before any process waits for others."""
    with socket.create_server(('127.0.0.1', 0)) as other:
      port = other.getsockname()[1]
      folder = tempfile.mkdtemp()
      done = small.python(
        *('main.py', '--config=configs/vgg16_bsp.py'),
        *('--config.model.name=none', f'--workdir={folder}/run'),
        *('--config.cluster.runtime=distributed', '--config.cluster.workers=1'),
        *('--config.cluster.interface=lo', '--config.cluster.start_s=0.2'),
        *('--config.route.server.servers=1', '--config.epochs=0.1'),
        f'--config.outputs.metrics_port={port}',
      )
    self.assertEqual(done.returncode, 75, done.stderr)
    field = 'config.outputs.metrics_port'
    self.assertRegex(
      done.stderr, f'Given up, .*{field}: 127.0.0.1:{port}: Address already'
    )


if __name__ == '__main__':
  absltest.main()
