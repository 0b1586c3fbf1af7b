"""Fuzzes the listening ports of a run.

Two equal BSP runs with two workers are on this machine, and one of them is
fuzzed: with a dedicated server (services control and pushes), or with an
allreduce (control, sums and states).  Every port on which its processes listen
receives random bytes, first messages of a real client with bytes flipped or cut
off, and invalid hellos, headers, checksums and sizes, with and without the
token, for all services, from random addresses in 127.0.0.0/8.  Other
connections send nothing, or send slowly.
"""

import contextlib
import json
import pathlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bench import clusters
from cluster.network import frames, handshake
from cluster.network.connection import Connection, run_steps
from cluster.network.messages import Schema
from cluster.network.streams import (
  CONTROL,
  STATES,
  Security,
  Stream,
  TransportError,
  push_service,
)
from cluster.parameter_server.mirrors import share_part
from outputs import arrays, checkpoints

_WORKERS = 2
_SERVICES = (
  *(CONTROL, CONTROL, CONTROL, push_service(0)),
  *(STATES, 'sums', 'probes', share_part(0)),
)
# Parts of checkpoints that have the parameters, by route.
_PARTS = {'server': 'server0', 'forest': 'coordinator'}
_FIELDS = {
  'model.name': 'mlp',
  'eval_every': 1e9,
  'log_every': 10**6,
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': 0.1,
  'cluster.speed.per_example_s': 0.0,
  'cluster.speed.name': 'constant',
  'cluster.speed.slowdown': '(1.0,)',
  'checkpoint.every_s': float('inf'),
  'checkpoint.every_examples': 10**9,
}
_EPOCHS_PER_S = 64 / 1437 / 0.12  # Of digits, in batches of 32.
_MESSAGE_S = 0.006  # Expected seconds of a message.
_LIMIT_S = 900.0
_SETTLE_S = 3.0
_ROUTES: dict[str, dict[str, Any]] = {
  'server': {},
  'forest': {'servers': 0, 'dedicated': False},
}
_SILENT = 64  # Open connections that send nothing, at most.
_WORDS: tuple[Any, ...] = (
  *(None, True, -1, 0, 1, 2, 3, 2**31, 2**53, 2**63, 0.5, 1e308, '', '0'),
  *([], [0], [[]], {}, {'worker': 0}, 'x' * 10**5, '\n\x1b[2J', 'ü'),
  *('WorkerHello', 'ServerHello', 'WorkerConnection', 'StateRequest'),
  *('WorkerHeartbeat', 'Activity', 'PushArrived', 'Connected'),
)
_FIELDS_SAID = (
  *('type', 'worker', 'server', 'incarnation', 'process', 'fingerprint'),
  *('address', 'sent', 'progress', 'orders', 'text', 'report', 'devices'),
  *('nonce', 'proof', 'hello', 'iteration', 'size_bytes', 'question'),
  *('versions', 'sources', 'jax'),
)
_ANYTHING: Schema[Any] = Schema(Any)


def parameters(run: pathlib.Path, route: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a run's newest checkpoint."""
  directory = run / 'checkpoints'
  newest = directory / str(checkpoints.steps(directory)[-1])
  tree = arrays.read(newest / _PARTS[route])
  return {k: v for k, v in tree.items() if k.startswith('array')}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
  """Returns whether two runs have the same parameters, bit for bit."""
  return one.keys() == other.keys() and all(
    one[name].tobytes() == other[name].tobytes() for name in one
  )


class Fuzz:
  """Client that sends random and invalid messages to the ports of a run.

  Attributes:
    sent: Number of messages sent, by kind.
  """

  def __init__(self, ports: list[int], token: str, seed: int):
    """Creates a client, and records the first messages of a real one.

    Args:
      ports: Ports on the loopback interface.
      token: Token of the run.
      seed: Seed of the messages.
    """
    self.sent: Counter[str] = Counter()
    self._ports = ports
    self._rng = random.Random(seed)
    self._token = token
    self._recorded = [_recorded(port, token) for port in ports]
    self._silent: list[socket.socket] = []
    self._kinds: dict[str, tuple[int, Callable[[int], None]]] = {
      'random bytes': (3, self._bytes),
      'first messages, bytes flipped': (6, self._flipped),
      'first messages, cut': (3, self._cut),
      'handshakes without the token': (3, self._handshake),
      'invalid hellos, with the token': (3, self._hello),
      'invalid frames, with the token': (3, self._frames),
      'invalid bytes to services, with the token': (2, self._service),
      'nothing': (1, self._nothing),
    }

  def send(self) -> None:
    """Sends one message of a random kind to a random port."""
    kinds = list(self._kinds)
    weights = [weight for weight, _ in self._kinds.values()]
    (kind,) = self._rng.choices(kinds, weights)
    with contextlib.suppress(OSError, TransportError):
      self._kinds[kind][1](self._rng.randrange(len(self._ports)))
    self.sent[kind] += 1

  def close(self) -> None:
    """Closes the connections that send nothing."""
    for end in self._silent:
      end.close()

  def _raw(self, where: int, data: bytes) -> None:
    with self._connect(where) as end:
      end.sendall(data)
      end.settimeout(0.01)
      with contextlib.suppress(TimeoutError):
        end.recv(4096)

  def _bytes(self, where: int) -> None:
    self._raw(where, self._rng.randbytes(self._rng.choice((1, 100, 10**5))))

  def _flipped(self, where: int) -> None:
    data = bytearray(self._recorded[where])
    for _ in range(self._rng.choice((1, 1, 3, 30))):
      data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
    self._raw(where, bytes(data))

  def _cut(self, where: int) -> None:
    data = self._recorded[where]
    data = data[: self._rng.randrange(len(data))]
    if self._rng.random() < 0.1:  # Slowly.
      with self._connect(where) as end:
        for start in range(0, min(len(data), 200), 20):
          end.sendall(data[start : start + 20])
          time.sleep(0.01)
    else:
      self._raw(where, data + self._rng.randbytes(20))

  def _nothing(self, where: int) -> None:
    self._silent.append(self._connect(where))
    if len(self._silent) > _SILENT:
      self._silent.pop(0).close()

  def _handshake(self, where: int) -> None:
    service = self._rng.choice((b'control', b'pushes', b'')).ljust(32)
    version = self._rng.choice((b'syncope4', b'syncope3', bytes(8)))
    with self._connect(where) as end:
      end.sendall(version + service + self._rng.randbytes(32))
      end.settimeout(0.1)
      with contextlib.suppress(TimeoutError):
        if end.recv(64):
          end.sendall(self._rng.randbytes(self._rng.choice((1, 32, 1000))))
          end.recv(64)

  def _hello(self, where: int) -> None:
    self._stream(where, lambda stream: None)

  def _frames(self, where: int) -> None:
    def send(stream: Stream) -> None:
      stream.send(self._invalid_header())
      for _ in range(3):
        kind = self._rng.choice((0, 1, 2, 3, 9))
        data = self._rng.choice((b'', b'\x92\0\1', b'\x92\0\0', b'\xff' * 1000))
        number = self._rng.choice((0, 1, 2, 3, 9))
        header = bytearray(frames.pack_header(kind, number, data))
        if self._rng.random() < 0.3:
          header[self._rng.randrange(len(header))] ^= 1
        data = data[: self._rng.choice((None, len(data) // 2))]
        stream._channel.send([header + data])
      header = self._invalid_header()
      stream.send(header, [np.zeros(1000, np.uint8)], 1000, spoil='first')

    self._stream(where, send)

  def _service(self, where: int) -> None:
    """Sends random bytes after a valid handshake."""
    with contextlib.closing(self._authenticated(where)) as connection:
      connection.sock.settimeout(0.1)
      size = self._rng.choice((1, 16, 100, 10**5))
      connection.sock.sendall(self._rng.randbytes(size))
      with contextlib.suppress(TimeoutError):
        connection.sock.recv(4096)

  def _authenticated(self, where: int) -> Connection:
    port = self._ports[where]
    connection = Connection(self._connect(where), f'127.0.0.1:{port}')
    steps = handshake.initiate(
      connection,
      Security(token=self._token),
      None,
      '',
      handshake.name_service(self._rng.choice(_SERVICES)),
    )
    try:
      run_steps(connection, steps, time.monotonic() + 2.0)
    except (TransportError, OSError):
      connection.close()
      raise
    return connection

  def _connect(self, where: int) -> socket.socket:
    """Returns a connection to a port, from a random address."""
    source = f'127.{self._rng.randrange(256)}.{self._rng.randrange(256)}.2'
    return _connection(self._ports[where], (source, 0))

  def _invalid_header(self) -> Any:
    if self._rng.random() < 0.2:
      return self._rng.choice(_WORDS)
    fields = self._rng.sample(_FIELDS_SAID, self._rng.randrange(1, 5))
    return {field: self._rng.choice(_WORDS) for field in fields}

  def _stream(self, where: int, talk: Callable[[Stream], None]) -> None:
    stream = Stream(self._authenticated(where))
    timer = threading.Timer(0.2, stream.cancel)
    timer.start()
    try:
      stream.send(self._invalid_header())  # As the hello.
      talk(stream)
      stream.receive(_ANYTHING)
      stream.receive(_ANYTHING)
    finally:
      timer.cancel()
      stream.cancel()
      stream.close()


def _connection(
  port: int, source: tuple[str, int] | None = None
) -> socket.socket:
  return socket.create_connection(('127.0.0.1', port), 2.0, source)


def _recorded(port: int, token: str) -> bytes:
  """Returns the bytes that a client with the token sends, up to its hello."""
  data = bytearray()
  with socket.create_server(('127.0.0.1', 0)) as server:
    passing = threading.Thread(target=_pass_on, args=(server, port, data))
    passing.start()
    here = server.getsockname()[1]
    with contextlib.suppress(TransportError):
      # The proof is for the port that the relay forwards to.
      _connect_at(f'127.0.0.1:{port}', here, Security(token=token))
    passing.join()
  return bytes(data)


def _connect_at(address: str, port: int, security: Security) -> None:
  """Sends a handshake for an address, and a hello, to another port."""
  connection = Connection(_connection(port), address)
  steps = handshake.initiate(
    connection, security, None, '', handshake.name_service(CONTROL)
  )
  try:
    run_steps(connection, steps, time.monotonic() + 2.0)
  except (TransportError, OSError):
    connection.close()
    return
  stream = Stream(connection)
  with contextlib.suppress(TransportError):
    stream.send({})
    stream.receive(_ANYTHING)
  stream.close()


def _pass_on(server: socket.socket, port: int, data: bytearray) -> None:
  near, _ = server.accept()
  with near, _connection(port) as far:

    def back() -> None:
      with contextlib.suppress(OSError):
        while answer := far.recv(65536):
          near.sendall(answer)
        near.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=back)
    thread.start()
    near.settimeout(0.5)
    with contextlib.suppress(OSError):
      while sent := near.recv(65536):
        data += sent
        far.sendall(sent)
    with contextlib.suppress(OSError):
      far.shutdown(socket.SHUT_RDWR)
    thread.join()


def listening(pid: int) -> list[int]:
  """Returns the TCP ports that a process listens on."""
  own = set()
  for path in pathlib.Path(f'/proc/{pid}/fd').iterdir():
    with contextlib.suppress(OSError):
      own.add(str(path.readlink()))
  ports = set()
  for name in ('tcp', 'tcp6'):
    lines = pathlib.Path('/proc/net', name).read_text().splitlines()[1:]
    for row in map(str.split, lines):
      if row[3] == '0A' and f'socket:[{row[9]}]' in own:
        ports.add(int(row[1].rpartition(':')[2], 16))
  return sorted(ports)


class Usage(NamedTuple):
  """Resources of a process.

  Attributes:
    memory_MB: Resident memory, MiB.
    descriptors: Number of open descriptors.
    threads: Number of threads.
  """

  memory_MB: int
  descriptors: int
  threads: int


def _usage(pid: int) -> Usage | None:
  """Returns what a process uses; None if it has ended."""
  folder = pathlib.Path(f'/proc/{pid}')
  try:
    lines = (folder / 'status').read_text().splitlines()
    fields = dict(line.split(':', 1) for line in lines)
    count = len([*(folder / 'fd').iterdir()])
    memory_MB = int(fields['VmRSS'].split()[0]) // 1024
    return Usage(memory_MB, count, int(fields['Threads']))
  except (OSError, KeyError):
    return None


def _rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  if path.exists():
    for line in path.read_text().rpartition('\n')[0].splitlines():
      yield json.loads(line)


def attack(
  run: pathlib.Path, count: int, seed: int, going: Callable[[], bool]
) -> tuple[Fuzz, dict[str, list[Usage]]]:
  """Fuzzes all processes of a run that listen.

  Args:
    run: Folder of the run.
    count: Number of messages.
    seed: Seed of the messages.
    going: Returns whether the run continues.

  Returns:
    The client, and the resources of each process, by role, every 100 messages
    and some seconds after the last one.
  """
  while not list(_rows(run / 'events.jsonl')) and going():
    time.sleep(0.1)
  pids = {r['role']: r['pid'] for r in _rows(run / 'launch.jsonl')}
  found = {role: listening(pid) for role, pid in pids.items()}
  token = (run / 'token').read_text().strip()
  fuzz = Fuzz([port for own in found.values() for port in own], token, seed)
  usage: dict[str, list[Usage]] = {role: [] for role in found if found[role]}

  def measure() -> None:
    for role, own in usage.items():
      if measured := _usage(pids[role]):
        own.append(measured)

  measure()
  while fuzz.sent.total() < count and going():
    fuzz.send()
    if fuzz.sent.total() % 100 == 0:
      measure()
  fuzz.close()
  time.sleep(_SETTLE_S)
  measure()
  return fuzz, usage


class Outcome(NamedTuple):
  """What two runs have shown.

  Attributes:
    sent: Number of messages sent, by kind.
    usage: Resources of each fuzzed process, by role, as `attack` gives them.
    refused: Lines of the fuzzed run's log about refused peers.
    lines: Lines of this log.
    equal: Whether both runs end with the same parameters, bit for bit (a sum of
      two gradients has one order).
  """

  sent: Counter[str]
  usage: dict[str, list[Usage]]
  refused: int
  lines: int
  equal: bool

  def __str__(self) -> str:
    rows = [f'{n:7}  {kind}' for kind, n in self.sent.most_common()]
    rows.append(f'{self.sent.total():7}  in all')
    for role, own in self.usage.items():
      rows.append(
        f'{role}: before, at most, {_SETTLE_S:g} s after the last message'
      )
      rows += [
        f'{field:>14}  {values[0]}, {max(values)}, {values[-1]}'
        for field, values in zip(
          Usage._fields, zip(*own, strict=True), strict=True
        )
      ]
    rows.append(f'lines of its log that say so: {self.refused} of {self.lines}')
    return '\n'.join(rows)


def execute(
  out: pathlib.Path, route: str, *, messages: int, seed: int = 0
) -> Outcome:
  """Executes a fuzzed and a calm run; returns what they have shown.

  Args:
    out: Folder of the runs.
    route: 'server' or 'forest'.
    messages: Number of messages.
    seed: Seed of the messages.

  Raises:
    RuntimeError: If a run fails.
  """
  seconds = messages * _MESSAGE_S + 10.0
  fields = _FIELDS | {'epochs': seconds * _EPOCHS_PER_S, 'route.name': route}
  with contextlib.ExitStack() as stack:
    fuzzed, calm = (
      stack.enter_context(
        clusters.start(
          clusters.command(
            out / name,
            'configs/vgg16_bsp.py',
            fields,
            workers=_WORKERS,
            **_ROUTES[route],
          ),
          out / name,
        )
      )
      for name in ('fuzzed', 'calm')
    )
    fuzz, usage = attack(
      out / 'fuzzed', messages, seed, lambda: fuzzed.code('fuzzed') is None
    )
    for run in (fuzzed, calm):
      run.finish(_LIMIT_S)
    lines = fuzzed.log('fuzzed').splitlines()
  refused = sum(': refused: ' in line for line in lines)
  ends = [parameters(out / name, route) for name in ('fuzzed', 'calm')]
  return Outcome(fuzz.sent, usage, refused, len(lines), same(*ends))
