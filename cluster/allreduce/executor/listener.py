"""The listener of an executor, and who has not been let in yet.

Strangers cannot hold it up or fill it: a greeting has a time, there are only so
many at once, and what is refused is said in the log a line a second at most.
Who has shown that it knows the token but is of a later generation waits until
that is formed here.
"""

import contextlib
import functools
import math
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.allreduce.executor import links
from cluster.allreduce.executor.links import Hello, Link
from cluster.allreduce.executor.loop import IN, Loop
from cluster.network.admission import WAIT_S
from cluster.network.errors import Closed, TransportError
from cluster.network.handshake import Security
from cluster.network.rate_limited_log import RateLimitedLog

_MOST = 256  # That greet, and that wait, if workers are not more.
_PAUSE_S = 0.1  # Between two attempts to accept connections.
_ERRORS = (TransportError, OSError)


class _Greeting(NamedTuple):
  inbound: bool
  steps: links.Steps
  until_s: float
  done: Callable[[Any], None]
  failed: Callable[[Exception], None]


class Door:
  """Listener of one executor; its methods run in the event-loop thread.

  Attributes:
    address: 'host:port' that is listened on.
  """

  def __init__(
    self,
    loop: Loop,
    sock: socket.socket,
    security: Security,
    contexts: links.Contexts,
    *,
    index: int,
    workers: int,
    timeout_s: float,
    came: Callable[[Link, Hello], bool],
    short: Callable[[OSError], None],
  ):
    """Listens from here on, once the loop calls `open`.

    Args:
      loop: That all is done in.
      sock: That listens.
      security: Of this worker.
      contexts: Of its TLS.
      index: Of this worker.
      workers: How many may have to come at once.
      timeout_s: Of connections.
      came: Called with who knows the token; returns whether it takes the
        connection.  If not, it may be claimed until it ends.
      short: Called with why no connection can be accepted, again and again once
        that has lasted for half of `timeout_s`.
    """
    self.address = '{}:{}'.format(*sock.getsockname())
    self._loop, self._sock, self._security = loop, sock, security
    self._index, self._timeout_s, self._came = index, timeout_s, came
    self._most = max(_MOST, 2 * workers)  # Strangers may be among them.
    self._contexts, self._short = contexts, short
    self._resume_s: float | None = None  # Monotonic; while accepting pauses.
    # Monotonic seconds of the first and last failure in a row to accept.
    self._failing_s: tuple[float, float] | None = None
    self._refusals = RateLimitedLog()
    self._greetings: dict[Link, _Greeting] = {}
    self._waiting: dict[Link, Hello] = {}

  def open(self) -> None:
    """Accepts connections from here on."""
    self._resume_s = None
    self._loop.watch(self._sock, IN, self._accept)

  def reopen(self) -> None:
    """Accepts connections again in a moment, whatever has kept it from that."""
    self._resume_s = time.monotonic() + _PAUSE_S
    self._loop.ticking = True

  def connect(
    self,
    address: str,
    host: str,
    hello: Hello,
    done: Callable[[Link], None],
    failed: Callable[[Exception], None],
  ) -> None:
    """Connects to another worker.

    Args:
      address: IPv4 'address:port' of its listener.
      host: Of the address as it was given.
      hello: What to say.
      done: Called once it has let us in, which may be later than a greeting
        takes: whoever waits for it has a limit, and hangs up.
      failed: Called with what went wrong.
    """
    sock = None
    try:
      sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
      link = Link(sock, address, self._timeout_s)
      ip, _, port = address.rpartition(':')
      with contextlib.suppress(BlockingIOError):
        sock.connect((ip, int(port)))
    except OSError as error:
      if sock:
        sock.close()
      failed(error)
      return

    def shown() -> None:
      greeting = self._greetings[link]
      self._greetings[link] = greeting._replace(until_s=math.inf)

    context = self._contexts.client
    steps = links.ask(link, self._security, context, host, hello, shown)
    until_s = time.monotonic() + self._timeout_s
    self._greet(
      link, _Greeting(False, steps, until_s, lambda _: done(link), failed)
    )

  def claim(self, generation: int) -> list[tuple[Link, Hello]]:
    """Returns who waits for a generation; refuses who is of earlier ones."""
    claimed = []
    for link, hello in [*self._waiting.items()]:
      if hello.generation <= generation:
        del self._waiting[link]
        self._loop.forget(link.sock)
        if hello.generation == generation:
          claimed.append((link, hello))
        else:
          self.refuse(link, f'generation {hello.generation} is over')
    return claimed

  def refuse(self, link: Link, why: str) -> None:
    """Refuses who knows the token, and says why in the log."""
    links.refuse(link)
    link.close()
    self._refusals.write(f'{link.peer}: refused: {why}')

  def hang_up(self) -> None:
    """Ends the greetings of this worker with others."""
    for link, greeting in [*self._greetings.items()]:
      if not greeting.inbound:
        self._drop(link)

  def tick(self) -> bool:
    """Ends greetings that take too long, and resumes to accept connections.

    Returns:
      Whether it has to be called again.
    """
    now = time.monotonic()
    if self._resume_s is not None and now >= self._resume_s:
      self.open()
    for link, greeting in [*self._greetings.items()]:
      if now > greeting.until_s:
        self._drop(link)
        greeting.failed(Closed(f'{link.peer}: it has not greeted in time'))
    return bool(self._greetings) or self._resume_s is not None

  def close(self) -> None:
    """Accepts no more, and ends all that have not been let in."""
    self._loop.forget(self._sock)
    self._sock.close()
    for link in [*self._greetings, *self._waiting]:
      self._drop(link)
    self._refusals.close()

  def _accept(self, events: int) -> None:
    del events
    try:
      sock, (host, port) = self._sock.accept()
    except (BlockingIOError, ConnectionAbortedError):
      return
    except OSError as error:
      self._pause(error)
      return
    self._failing_s = None
    try:
      link = Link(sock, f'{host}:{port}', self._timeout_s)
    except OSError as error:
      sock.close()
      self._refusals.write(f'{host}:{port}: refused: {error}')
      return
    steps = links.answer(
      link, self._security, self._contexts.listener, self.address
    )

    def failed(error: Exception) -> None:
      why = str(error).removeprefix(f'{link.peer}: ')
      self._refusals.write(f'{link.peer}: refused: {why}')

    strangers = [x for x, g in self._greetings.items() if g.inbound]
    if len(strangers) >= self._most:
      self._drop(strangers[0])
    until_s = time.monotonic() + WAIT_S
    known = functools.partial(self._known, link)
    self._greet(link, _Greeting(True, steps, until_s, known, failed))

  def _pause(self, error: OSError) -> None:
    """Accepts no connections for a moment: the process lacks descriptors.

    They wait with the system.  A thread that slept instead would keep those
    waiting that are connected already.
    """
    now = time.monotonic()
    self._refusals.write(f'{self.address}: no connection is accepted: {error}')
    self._loop.forget(self._sock)
    self.reopen()
    first, last = self._failing_s or (now, now)
    if now - last > 10 * _PAUSE_S:
      first = now
    self._failing_s = first, now
    if now - first > self._timeout_s / 2:
      self._short(error)

  def _known(self, link: Link, hello: Hello) -> None:
    if hello.receiver != self._index:
      self.refuse(link, f'it looks for worker {hello.receiver}')
    elif not self._came(link, hello):
      if len(self._waiting) >= self._most:
        self._drop(next(iter(self._waiting)))
      self._waiting[link] = hello
      # It says nothing more until it is let in: this is its end.
      self._loop.watch(link.sock, IN, lambda _: self._drop(link))

  def _greet(self, link: Link, greeting: _Greeting) -> None:
    self._greetings[link] = greeting
    self._loop.ticking = True
    self._step(link)

  def _step(self, link: Link) -> None:
    greeting = self._greetings[link]
    with contextlib.ExitStack() as stack:
      stack.callback(
        self._drop, link
      )  # If an error comes that is not expected.
      try:
        events = next(greeting.steps)
        self._loop.watch(link.sock, events, lambda _: self._step(link))
      except StopIteration as end:
        del self._greetings[link]
        self._loop.forget(link.sock)
        greeting.done(end.value)
      except _ERRORS as error:
        self._drop(link)
        greeting.failed(error)
      stack.pop_all()

  def _drop(self, link: Link) -> None:
    self._greetings.pop(link, None)
    self._waiting.pop(link, None)
    self._loop.forget(link.sock)
    link.close()
