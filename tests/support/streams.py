"""Streams for tests: listeners, clients and other processes."""

import socket
import time
from typing import Any

import numpy as np
from absl.testing import parameterized

from cluster.network import streams as transport
from cluster.network.messages import Schema
from cluster.network.streams import Security
from tests.support import commands
from tests.support.listeners import Listener

HOST = '127.0.0.1'
OPEN = Security()
PLAIN = Schema(Any)  # Accepts any message.
WAIT_S = 15.0  # Longer than any operation of a test.
# Connects, prints a line, and receives until the stream ends.
_CLIENT = """
import sys
import time
from typing import Any
from cluster.network import messages, streams as transport
from tests.support import commands
from tests.support.listeners import Listener
stream = transport.connect(sys.argv[1], 'hello', transport.Security(), 10.0)
print('connected', flush=True)
try:
  while True:
    for _ in stream.receive(messages.Schema(Any)).chunks:
      pass
except transport.Closed as error:
  print(error, flush=True)
stream.close()
"""


def random_bytes(size, seed=0):
  return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def echo(stream, hello):
  """Sends back all messages, each chunk before it reads the next one."""
  while True:
    message = stream.receive(PLAIN)
    stream.send(message.header, message.chunks, message.size_bytes)


def read(message):
  into = np.zeros(message.size_bytes, np.uint8)
  message.read(into)
  return into


class TestCase(parameterized.TestCase):
  def listener(self, handle=echo, security=OPEN, service=transport.CONTROL):
    port = transport.Port(HOST, 0, security)
    listener = Listener(port, handle, service=service)
    self.addCleanup(listener.close, 0.0)
    return listener

  def connect(self, listener, hello=None, security=OPEN):
    stream = transport.connect(listener.address, hello, security, WAIT_S)
    self.addCleanup(stream.close)
    return stream

  def process(self, code, *args):
    words = commands.python(code, *args)
    return self.enterContext(commands.start(words, answers=True))

  def peer(self, listener):
    """Returns a client in another process, once it is connected."""
    process = self.process(_CLIENT, listener.address)
    self.assertEqual(process.receive(), 'connected')
    return process


def tcp_pair():
  """Returns both ends of a TCP connection on the loopback interface."""
  with socket.create_server((HOST, 0)) as server:
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
  return near, far


def wait_until(happened):
  """Returns once a condition is true; fails after `WAIT_S`."""
  deadline = time.monotonic() + WAIT_S
  while not happened():
    if time.monotonic() > deadline:
      raise AssertionError(f'Not true within {WAIT_S:g} s.')
    time.sleep(0.01)
