"""Workers whose connections a test drives byte by byte.

The formats are written out here once more, so that tests compare an executor
with what its documentation says and not with its own code.
"""

import contextlib
import dataclasses
import hmac
import secrets
import socket
import struct
import threading
import time
from typing import NamedTuple

import numpy as np
import xxhash

from cluster.distributed.reduced.executor import links, program
from tests.support import executors, groups

UP, DOWN, LEFT = 1, 2, 3
HEADER_BYTES = 48
_HEADER = struct.Struct('<QQIIIHHQ')
_HELLO = struct.Struct('<QII')
_SETTLE_S = 0.05
_MAGIC, _PURPOSE = b'syncred1', b'syncopate reduce 1'
_ROLES = {'listener': b'listener', 'client': b'client  '}


class Fields(NamedTuple):
  """A frame before it is packed.

  Attributes:
    generation: Number of the membership.
    iteration: Number of the sum.
    layout: Code of the chunks.
    chunk: Number of the chunk.
    kind: UP, DOWN or LEFT.
    dtype: 0 for float32.
    body: Bytes of the chunk.
  """

  generation: int
  iteration: int
  layout: int
  chunk: int
  kind: int
  dtype: int
  body: bytes

  def packed(self):
    """Returns the bytes of the frame; all checksums are right."""
    fields = _HEADER.pack(
      self.generation,
      self.iteration,
      self.layout,
      self.chunk,
      len(self.body),
      self.kind,
      self.dtype,
      xxhash.xxh3_64_intdigest(self.body),
    )
    checksum = struct.pack('<Q', xxhash.xxh3_64_intdigest(fields))
    return fields + checksum + self.body


def unpacked(data):
  """Returns the whole frames at the beginning of some bytes."""
  found, start = [], 0
  while len(data) - start >= HEADER_BYTES:
    generation, iteration, layout, chunk, size, kind, dtype, _ = (
      _HEADER.unpack_from(data, start)
    )
    end = start + HEADER_BYTES + size
    if end > len(data):
      break
    body = bytes(data[start + HEADER_BYTES : end])
    found.append(
      Fields(generation, iteration, layout, chunk, kind, dtype, body)
    )
    start = end
  return found


class Peer:
  """A worker without an executor.

  Attributes:
    index: Number of the worker.
    address: 'host:port' that an executor connects to.
    received: Bytes that came over the connection of the current membership.
  """

  def __init__(self, index, security=executors.OPEN):
    """Listens.

    Args:
      index: Number of the worker.
      security: With a certificate for TLS, and no token.
    """
    self.index = index
    self._contexts = links.contexts(security)
    self._name = security.tls_name or executors.HOST
    self._listener = socket.create_server((executors.HOST, 0), backlog=100)
    self._listener.settimeout(executors.WAIT_S)
    self.address = '{}:{}'.format(*self._listener.getsockname())
    self.received = bytearray()
    self._in = self._out = None
    self._open, self._closed = [], False
    self._base = self._sent_bytes = 0

  def meet(self, made, generation, own=0):
    """Makes the connections from and to an executor."""
    self.hang_up()
    self.accept()
    self.connect(made, generation, own)
    if _exactly(self._out, 1) != b'\1':
      raise AssertionError('The executor does not let us in.')
    self._sent_bytes, self._base = 0, _received_bytes(made, self.index)

  def connect(self, made, generation, own=0):
    """Connects to an executor, which lets us in later."""
    out = socket.create_connection(parts(made.address), executors.WAIT_S)
    self._keep(out)
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context := self._contexts.client:
      out = self._keep(context.wrap_socket(out, server_hostname=self._name))
    ours = secrets.token_bytes(32)
    out.sendall(_MAGIC + ours)
    theirs = _exactly(out, 64)[:32]
    hello = _HELLO.pack(generation, self.index, own)
    out.sendall(_proof('client', ours + theirs) + hello)
    self._out = out

  def accept(self):
    """Lets the executor in that connects."""
    own = self._keep(self._listener.accept()[0])
    own.settimeout(executors.WAIT_S)
    if context := self._contexts.listener:
      own = self._keep(context.wrap_socket(own, server_side=True))
    nonce = _exactly(own, 40)[8:]
    ours = secrets.token_bytes(32)
    own.sendall(ours + _proof('listener', nonce + ours))
    _exactly(own, 32 + _HELLO.size)
    own.sendall(b'\1')
    self._in, self.received = own, bytearray()
    args = own, self.received
    threading.Thread(target=_drain, args=args, daemon=True).start()

  def send(self, data):
    """Sends bytes on the connection to the executor."""
    self._out.sendall(data)
    self._sent_bytes += len(data)

  def answer(self, data):
    """Sends bytes on the connection that the executor sends on."""
    self._in.sendall(data)

  def unread_bytes(self, made):
    """Returns how many bytes that were sent the executor has not read."""
    return self._base + self._sent_bytes - _received_bytes(made, self.index)

  def settle(self, made):
    """Waits until the executor has read what was sent, or reads no more."""
    end = time.monotonic() + _SETTLE_S
    while self.unread_bytes(made) and time.monotonic() < end:
      time.sleep(0.0005)

  def frames(self):
    """Returns the whole frames that the executor has sent so far."""
    return unpacked(bytes(self.received))

  def await_part(self, iteration, chunk):
    """Waits until the executor has sent its part of a chunk."""
    executors.until(
      lambda: any(
        (f.iteration, f.chunk, f.kind) == (iteration, chunk, UP)
        for f in self.frames()
      )
    )

  def hang_up(self):
    """Closes the connections."""
    while self._open:
      sock = self._open.pop()
      with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
      sock.close()
    self._in = self._out = None

  def close(self):
    """Closes everything, and interrupts whoever waits for a connection."""
    self._closed = True
    self.hang_up()
    with contextlib.suppress(OSError):
      self._listener.shutdown(socket.SHUT_RDWR)
    self._listener.close()

  def _keep(self, sock):
    self._open.append(sock)
    if self._closed:
      self.hang_up()
      raise AssertionError('The peer was closed meanwhile.')
    return sock


class Membership:
  """An executor, of worker 0, among peers that a test drives.

  Attributes:
    executor: The real one.
    group: Of the members, without its generation.
    peers: By worker index.
    generation: Number of the current membership.
  """

  def __init__(
    self,
    made,
    count,
    *,
    size,
    chunk_bytes,
    ranges=None,
    rate_Bps=1,
    security=executors.OPEN,
  ):
    """Connects nobody yet.

    Args:
      made: Executor of worker 0.
      count: Number of workers.
      size: Elements of a pool.
      chunk_bytes: As given to the executor.
      ranges: Of the pool; None for one.
      rate_Bps: Of the forest; the smallest window at 1.
      security: As given to the executor.
    """
    self.executor, self.generation = made, 0
    self.peers = {index: Peer(index, security) for index in range(1, count)}
    self.size, self.ranges = size, ranges or [(0, size)]
    forest, workers = executors.star(count)
    self._forest = dataclasses.replace(forest, rate_Bps=rate_Bps), workers
    addresses = {0: made.address}
    addresses |= {index: peer.address for index, peer in self.peers.items()}
    self.group = groups.group(*self._forest, addresses)
    roles = program.roles(self.group, 0, chunk_bytes=chunk_bytes)
    self.program = program.program(roles, size, self.ranges)

  def form(self):
    """Forms the next membership."""
    self.generation += 1
    group = self.group._replace(generation=self.generation)
    failed = []

    def form():
      failed.extend(executors.parallel([lambda: self.executor.form(group)]))

    thread = threading.Thread(target=form)
    thread.start()
    for peer in self.peers.values():
      peer.meet(self.executor, self.generation)
    thread.join()
    if failed != [None]:
      raise AssertionError(failed)

  def chunks(self, *, root):
    """Returns the chunks whose sum a worker makes."""
    trees = self._forest[0].trees
    names = self.group.names
    return [
      chunk
      for chunk, tree in enumerate(self.program.trees)
      if names[trees[tree].root] == root
    ]

  def fields(self, iteration, chunk, kind, numbers):
    """Returns a frame as a peer should send it.

    Args:
      iteration: Number of the sum.
      chunk: Number of the chunk.
      kind: UP or DOWN.
      numbers: float32 [size], the pool from which the chunk is taken.
    """
    start, stop = self.program.starts[chunk], self.program.stops[chunk]
    body = np.ascontiguousarray(numbers[start:stop], np.float32).tobytes()
    layout = self.program.layout
    return Fields(self.generation, iteration, layout, chunk, kind, 0, body)

  def take_part(self, iteration, numbers, total):
    """Has the only peer send its parts, and the sums that it makes."""
    (peer,) = self.peers.values()
    for chunk in self.chunks(root=0):
      peer.send(self.fields(iteration, chunk, UP, numbers).packed())
    for chunk in self.chunks(root=peer.index):
      peer.await_part(iteration, chunk)
      peer.send(self.fields(iteration, chunk, DOWN, total).packed())

  def close(self):
    """Closes all connections of the peers."""
    for peer in self.peers.values():
      peer.close()


def _received_bytes(made, index):
  usage = made.traffic().get(index)
  return usage.received_bytes if usage else 0


def parts(address):
  """Returns the host and the port of an address."""
  host, _, port = address.rpartition(':')
  return host, int(port)


def _exactly(sock, size):
  data = b''
  while len(data) < size:
    part = sock.recv(size - len(data))
    if not part:
      raise AssertionError(f'The connection ended after {len(data)} bytes.')
    data += part
  return data


def _proof(role, nonces):
  # Without a token the address is not part of the code.
  message = _PURPOSE + _ROLES[role] + nonces
  return hmac.digest(b'', message, 'sha256')


def _drain(sock, into):
  with contextlib.suppress(OSError):
    while part := sock.recv(1 << 16):
      into += part
