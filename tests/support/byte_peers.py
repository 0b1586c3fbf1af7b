"""Peers of an executor whose connections a test controls byte by byte.

This module repeats the frame and handshake formats, so that tests compare an
executor with its documentation and not with its own code.
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

from cluster.allreduce.executor import program
from cluster.network import handshake
from tests.support import executors, groups

UP, DOWN, LEFT = 4, 5, 6
HEADER_BYTES = 48
_HEADER = struct.Struct('<HHIQQIIQ')
_HELLO = struct.Struct('<QIII')
_SETTLE_S = 0.05
_MAGIC, _SERVICE = b'syncope4', b'sums'.ljust(32)
_ROLES = {'listener': b'listener', 'client': b'client  '}


class Fields(NamedTuple):
  """Fields of a frame.

  Attributes:
    membership_epoch: Number of the membership epoch.
    iteration: Number of the allreduce.
    layout: Code of the division into chunks.
    chunk: Number of the chunk.
    kind: UP, DOWN or LEFT.
    dtype: Code of the numbers' type; 0 for float32.
    body: Bytes of the chunk.
  """

  membership_epoch: int
  iteration: int
  layout: int
  chunk: int
  kind: int
  dtype: int
  body: bytes

  def pack(self):
    """Returns the bytes of the frame, with valid checksums."""
    fields = _HEADER.pack(
      self.kind,
      self.dtype,
      len(self.body),
      self.chunk,
      self.iteration,
      self.membership_epoch,
      self.layout,
      xxhash.xxh3_64_intdigest(self.body),
    )
    checksum = struct.pack('<Q', xxhash.xxh3_64_intdigest(fields))
    return fields + checksum + self.body


def unpack(data):
  """Returns the fields of the complete frames at the beginning of `data`."""
  frames, start = [], 0
  while len(data) - start >= HEADER_BYTES:
    kind, dtype, size, chunk, iteration, membership_epoch, layout, _ = (
      _HEADER.unpack_from(data, start)
    )
    end = start + HEADER_BYTES + size
    if end > len(data):
      break
    body = bytes(data[start + HEADER_BYTES : end])
    frames.append(
      Fields(membership_epoch, iteration, layout, chunk, kind, dtype, body)
    )
    start = end
  return frames


class Peer:
  """Worker without an executor, whose messages a test sends.

  Attributes:
    index: Index of the worker.
    address: 'host:port' that an executor connects to.
    received: Bytes received from the executor in the current membership epoch.
  """

  def __init__(self, index, security=executors.OPEN):
    """Creates a peer that listens for an executor.

    Args:
      index: Index of the worker.
      security: Credentials without a token; with a certificate for TLS.
    """
    self.index = index
    self._client_context = handshake.client_context(security)
    self._listener_context = handshake.listener_context(security)
    self._certificate = handshake.certificate_digest(security)
    self._name = security.tls_name or executors.HOST
    self._listener = socket.create_server((executors.HOST, 0), backlog=100)
    self._listener.settimeout(executors.WAIT_S)
    self.address = '{}:{}'.format(*self._listener.getsockname())
    self.received = bytearray()
    self._in = self._out = None
    self._open, self._closed = [], False
    self._base = self._sent_bytes = 0

  def meet(self, node, membership_epoch, receiver=0):
    """Accepts the connection of an executor, and connects to it."""
    self.hang_up()
    self.accept()
    self.connect(node, membership_epoch, receiver)
    if _exactly(self._out, 1) != b'\1':
      raise AssertionError('The executor rejects the connection.')
    self._sent_bytes, self._base = 0, _received_bytes(node, self.index)

  def connect(self, node, membership_epoch, receiver=0):
    """Connects to an executor, and sends the hello without its answer."""
    out = socket.create_connection(parts(node.address), executors.WAIT_S)
    self._keep(out)
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context := self._client_context:
      out = self._keep(context.wrap_socket(out, server_hostname=self._name))
    ours = secrets.token_bytes(32)
    out.sendall(_MAGIC + _SERVICE + ours)
    theirs = _exactly(out, 32)
    out.sendall(self._proof('client', ours + theirs))
    if _exactly(out, 33)[32:] != b'\1':
      raise AssertionError('The port does not let us in.')
    out.sendall(_HELLO.pack(membership_epoch, self.index, receiver, 0))
    self._out = out

  def accept(self):
    """Accepts the connection of an executor, and starts to receive."""
    receiver = self._keep(self._listener.accept()[0])
    receiver.settimeout(executors.WAIT_S)
    if context := self._listener_context:
      receiver = self._keep(context.wrap_socket(receiver, server_side=True))
    nonce = _exactly(receiver, 72)[40:]
    ours = secrets.token_bytes(32)
    receiver.sendall(ours)
    _exactly(receiver, 32)
    receiver.sendall(self._proof('listener', nonce + ours) + b'\1')
    _exactly(receiver, _HELLO.size)
    receiver.sendall(b'\1')  # Of the executor.
    self._in, self.received = receiver, bytearray()
    args = receiver, self.received
    threading.Thread(target=_drain, args=args, daemon=True).start()

  def send(self, data):
    """Sends bytes on the connection to the executor."""
    self._out.sendall(data)
    self._sent_bytes += len(data)

  def answer(self, data):
    """Sends bytes back on the connection on which the executor sends."""
    self._in.sendall(data)

  def unread_bytes(self, node):
    """Returns the number of sent bytes that the executor has not read."""
    return self._base + self._sent_bytes - _received_bytes(node, self.index)

  def settle(self, node):
    """Waits until the executor has read all sent bytes, `_SETTLE_S` at most."""
    end = time.monotonic() + _SETTLE_S
    while self.unread_bytes(node) and time.monotonic() < end:
      time.sleep(0.0005)

  def frames(self):
    """Returns the complete frames that the executor has sent so far."""
    return unpack(bytes(self.received))

  def await_part(self, iteration, chunk):
    """Waits until the executor has sent its partial sum of a chunk."""
    executors.wait_until(
      lambda: any(
        (f.iteration, f.chunk, f.kind) == (iteration, chunk, UP)
        for f in self.frames()
      )
    )

  def hang_up(self):
    """Closes the connections of the current membership epoch."""
    while self._open:
      sock = self._open.pop()
      with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
      sock.close()
    self._in = self._out = None

  def close(self):
    """Closes all sockets, and interrupts threads that wait for a connection."""
    self._closed = True
    self.hang_up()
    with contextlib.suppress(OSError):
      self._listener.shutdown(socket.SHUT_RDWR)
    self._listener.close()

  def _proof(self, role, nonces):
    # Without a token the address is not part of the code.
    message = _MAGIC + _ROLES[role] + _SERVICE + nonces + self._certificate
    return hmac.digest(b'', message, 'sha256')

  def _keep(self, sock):
    self._open.append(sock)
    if self._closed:
      self.hang_up()
      raise AssertionError('The peer was closed meanwhile.')
    return sock


class Membership:
  """Executor of worker 0, with peers that a test controls.

  Attributes:
    executor: The executor under test.
    group: Group of the members; `form` sets its epoch.
    peers: Peers, by worker index.
    membership_epoch: Number of the current membership epoch.
  """

  def __init__(
    self,
    node,
    count,
    *,
    size,
    chunk_bytes,
    buckets=None,
    rate_Bps=1,
    security=executors.OPEN,
  ):
    """Creates the peers, without connections.

    Args:
      node: Executor of worker 0.
      count: Number of workers.
      size: Number of elements of a gradient buffer.
      chunk_bytes: Bytes of a chunk, as given to the executor.
      buckets: Buckets of the buffer; None for a single one.
      rate_Bps: Rate of the forest, bytes per second; 1 has the smallest window.
      security: Credentials, as given to the executor.
    """
    self.executor, self.membership_epoch = node, 0
    self.peers = {index: Peer(index, security) for index in range(1, count)}
    self.size, self.buckets = size, buckets or [(0, size)]
    forest, workers = executors.star(count)
    self._forest = dataclasses.replace(forest, rate_Bps=rate_Bps), workers
    addresses = {0: node.address}
    addresses |= {index: peer.address for index, peer in self.peers.items()}
    self.group = groups.make_membership(*self._forest, addresses)
    roles = program.find_roles(self.group, 0, chunk_bytes=chunk_bytes)
    self.program = program.make_program(roles, size, self.buckets)

  def form(self):
    """Forms the next membership epoch, and connects all peers."""
    self.membership_epoch += 1
    group = self.group._replace(membership_epoch=self.membership_epoch)
    results = []

    def form():
      results.extend(executors.parallel([lambda: self.executor.form(group)]))

    thread = threading.Thread(target=form)
    thread.start()
    for peer in self.peers.values():
      peer.meet(self.executor, self.membership_epoch)
    thread.join()
    if results != [None]:
      raise AssertionError(results)

  def chunks(self, *, root):
    """Returns the numbers of the chunks whose root is worker `root`."""
    trees = self._forest[0].trees
    names = self.group.names
    return [
      chunk
      for chunk, tree in enumerate(self.program.trees)
      if names[trees[tree].root] == root
    ]

  def fields(self, iteration, chunk, kind, numbers):
    """Returns the fields of a valid frame of a peer.

    Args:
      iteration: Number of the allreduce.
      chunk: Number of the chunk.
      kind: UP or DOWN.
      numbers: Gradient buffer that contains the chunk, float32 [size].
    """
    start, stop = self.program.starts[chunk], self.program.stops[chunk]
    body = np.ascontiguousarray(numbers[start:stop], np.float32).tobytes()
    layout = self.program.layout
    return Fields(
      self.membership_epoch, iteration, layout, chunk, kind, 0, body
    )

  def take_part(self, iteration, numbers, total):
    """Sends the parts of the only peer, and the sums of its chunks as root."""
    (peer,) = self.peers.values()
    for chunk in self.chunks(root=0):
      peer.send(self.fields(iteration, chunk, UP, numbers).pack())
    for chunk in self.chunks(root=peer.index):
      peer.await_part(iteration, chunk)
      peer.send(self.fields(iteration, chunk, DOWN, total).pack())

  def close(self):
    """Closes all connections of the peers."""
    for peer in self.peers.values():
      peer.close()


def _received_bytes(node, index):
  usage = node.traffic().get(index)
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


def _drain(sock, into):
  with contextlib.suppress(OSError):
    while part := sock.recv(1 << 16):
      into += part
