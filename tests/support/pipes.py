"""Streams inside one process, for tests.

Messages sent before the end of a stream still arrive.
"""

import queue
import threading

import numpy as np

from cluster.network.errors import Closed
from cluster.network.streams import Incoming


def pair():
  """Returns both ends of a stream."""
  there, back = queue.SimpleQueue(), queue.SimpleQueue()
  return _End(there, back), _End(back, there)


class _End:
  """End of a stream, with the methods that workers and servers use."""

  def __init__(self, out, into):
    self.peer = 'here'
    self._out, self._in = out, into
    self._sending = threading.Lock()
    self._closed = False

  def send(self, header, chunks=(), size_bytes=0, *, spoil=None):
    del spoil
    with self._sending:
      self._put((header, size_bytes))
      sent = 0
      for chunk in chunks:
        sent += chunk.size
        self._put(np.array(chunk))
      if sent != size_bytes:
        raise ValueError(f'Expected {size_bytes} bytes, got {sent}.')

  def receive(self, schema):
    del schema
    header, size_bytes = self._get()
    return Incoming(header, size_bytes, self._body(size_bytes))

  def cancel(self, reason=''):
    del reason
    self._closed = True
    for way in (self._out, self._in):
      way.put(None)

  def _body(self, size_bytes):
    while size_bytes:
      chunk = self._get()
      size_bytes -= chunk.size
      yield chunk

  def _put(self, frame):
    if self._closed:
      raise Closed('here: cancelled')
    self._out.put(frame)

  def _get(self):
    frame = self._in.get(timeout=30.0)
    if frame is None:
      self._in.put(None)
      raise Closed('here: cancelled')
    return frame
