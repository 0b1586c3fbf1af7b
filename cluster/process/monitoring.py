"""HTTP server of the coordinator for operators: /metrics and /healthz.

`/metrics` is in Prometheus' text format 0.0.4.  `/healthz` answers 200 while
the coordinator's event loop is alive, else 503, with a line of JSON, as probes
of Kubernetes expect.  Neither shows configs, paths or secrets.

Anyone may connect, so the server takes a limited number of connections, each
for a limited time: strangers cannot use up the descriptors or the threads of
the coordinator.
"""

import contextlib
import http.server
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from cluster.network import time_limits

_PREFIX = 'syncopate_'
_MAX_CONNECTIONS = 16  # At a time; others are closed at once.
_LIMIT_S = 5.0  # From the beginning of a connection to its end.
_PAUSE_S = 0.1  # After a failure to accept connections.


class Status(NamedTuple):
  """Status of a run.

  Attributes:
    iterations: Pushes that have arrived whole.
    updates: Updates applied or skipped.
    examples: Examples in applied updates.
    dropped_examples: Examples of pushes that the scheme has dropped.
    lost_examples: Examples of iterations whose pushes never arrived.
    delivered_bytes: Bytes of pushes and pulls, or of sums, that have arrived.
    workers_alive: Workers that take part.
    membership_epoch: Number of the membership epoch; -1 before the first, and
      on routes without one.
    idle_s: Seconds since the last iteration has ended, or since the start.
    is_alive: Whether the event loop is alive.
  """

  iterations: int
  updates: int
  examples: int
  dropped_examples: int
  lost_examples: int
  delivered_bytes: int
  workers_alive: int
  membership_epoch: int
  idle_s: float
  is_alive: bool


# Name, type and help of each metric, by field of `Status`.
_METRICS = {
  'iterations': ('iterations_total', 'counter', 'Pushes arrived whole.'),
  'updates': ('updates_total', 'counter', 'Updates applied or skipped.'),
  'examples': ('examples_total', 'counter', 'Examples in applied updates.'),
  'dropped_examples': (
    'dropped_examples_total',
    'counter',
    'Examples of pushes that the scheme has dropped.',
  ),
  'lost_examples': (
    'lost_examples_total',
    'counter',
    'Examples of iterations whose pushes never arrived.',
  ),
  'delivered_bytes': ('delivered_bytes_total', 'counter', 'Bytes arrived.'),
  'workers_alive': ('workers_alive', 'gauge', 'Workers that take part.'),
  'membership_epoch': ('membership_epoch', 'gauge', 'Membership epoch, or -1.'),
  'idle_s': ('idle_seconds', 'gauge', 'Seconds since the last iteration.'),
}


def format_metrics(status: Status) -> str:
  """Returns a status in Prometheus' text format."""
  lines = []
  for field, (name, kind, text) in _METRICS.items():
    name = _PREFIX + name
    lines += [f'# HELP {name} {text}', f'# TYPE {name} {kind}']
    lines.append(f'{name} {getattr(status, field)!r}')
  return '\n'.join(lines) + '\n'


class Monitor:
  """HTTP server in a thread, until `close`.

  Attributes:
    port: Port that it listens on.
  """

  def __init__(self, host: str, port: int, read: Callable[[], Status]):
    """Starts to listen.

    Args:
      host: IPv4 or IPv6 address to listen on, and no other.
      port: Port; 0 for any free one.
      read: Returns the status; called in threads of the server.

    Raises:
      OSError: If the address cannot be listened on.
    """

    class Handler(_Handler):
      read_status = staticmethod(read)

    self._server = _Server(host, port, Handler)
    self.port: int = self._server.server_address[1]
    self._thread = threading.Thread(
      target=self._server.serve_forever, daemon=True
    )
    self._thread.start()

  def close(self) -> None:
    """Ends the server."""
    self._server.shutdown()
    self._server.server_close()
    self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
  """Server of a limited number of connections, each with a thread."""

  allow_reuse_address = True
  daemon_threads = True
  request_queue_size = 128

  def __init__(self, host: str, port: int, handler: type['_Handler']):
    self.address_family = socket.AF_INET6 if ':' in host else socket.AF_INET
    self._free = threading.Semaphore(_MAX_CONNECTIONS)
    super().__init__((host, port), handler)

  def get_request(self) -> tuple[socket.socket, Any]:
    try:
      return super().get_request()
    except OSError:  # Without descriptors the next attempt fails at once, too.
      time.sleep(_PAUSE_S)
      raise

  def process_request(self, request: Any, client_address: Any) -> None:
    if not self._free.acquire(blocking=False):
      self.shutdown_request(request)
      return
    is_started = False
    try:
      super().process_request(request, client_address)
      is_started = True
    finally:
      if not is_started:
        self._free.release()

  def process_request_thread(self, request: Any, client_address: Any) -> None:
    def end() -> None:
      with contextlib.suppress(OSError):  # The client has ended it already.
        request.shutdown(socket.SHUT_RDWR)

    try:
      with time_limits.limit(_LIMIT_S, end):
        super().process_request_thread(request, client_address)
    finally:
      self._free.release()


class _Handler(http.server.BaseHTTPRequestHandler):
  """Handler of one request."""

  read_status: Callable[[], Status]

  def handle(self) -> None:
    """Handles the request; a client may disconnect at any time."""
    with contextlib.suppress(OSError):
      super().handle()

  def do_GET(self) -> None:
    """Answers /metrics and /healthz."""
    if self.path == '/metrics':
      text = format_metrics(self.read_status())
      self._answer(HTTPStatus.OK, 'text/plain; version=0.0.4', text)
    elif self.path == '/healthz':
      status = self.read_status()
      code = (
        HTTPStatus.OK if status.is_alive else HTTPStatus.SERVICE_UNAVAILABLE
      )
      fields = {
        'alive': status.is_alive,
        'idle_s': status.idle_s,
        'workers_alive': status.workers_alive,
      }
      self._answer(code, 'application/json', json.dumps(fields) + '\n')
    else:
      self._answer(HTTPStatus.NOT_FOUND, 'text/plain', 'Not found.\n')

  def _answer(self, code: HTTPStatus, kind: str, text: str) -> None:
    body = text.encode()
    self.send_response(code)
    self.send_header('Content-Type', kind)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, format: str, *args: object) -> None:
    """Logs nothing: probes come every few seconds."""
