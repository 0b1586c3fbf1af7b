"""The simulated system beside the host: one program, the same outcome."""

import contextlib
import errno
import os
import tempfile
import threading

from absl.testing import absltest, parameterized

from system import clock, net, processes, threads
from system.simulated.world import World

_HOST = '127.0.0.1'
_WAIT_S = 10.0
_opened = []  # Sockets of the program that runs.


def _socket():
  _opened.append(net.Socket(net.AF_INET, net.SOCK_STREAM))
  return _opened[-1]


def _call(program):
  """Returns what a program returns, after closing its sockets."""
  try:
    return program()
  finally:
    while _opened:
      _opened.pop().close()


def _on_host(program):
  """Returns what a program returns in a thread of this process."""
  results = []
  thread = threading.Thread(target=lambda: results.append(_call(program)))
  thread.start()
  thread.join(_WAIT_S)
  return results[0]


def _simulated(program, seed=0):
  """Returns what a program returns in a simulated process."""
  results = []
  world = World(seed)
  world.start('one', _HOST, lambda: results.append(_call(program)))
  world.run(1000.0)
  world.close()
  return results[0]


def _pair():
  """Returns both ends of a connection."""
  listener = _socket()
  listener.bind((_HOST, 0))
  listener.listen(1)
  client = _socket()
  client.connect(listener.getsockname())
  server, _ = listener.accept()
  _opened.append(server)
  listener.close()
  return client, server


def _receive_all(sock):
  found = b''
  while part := sock.recv(1000):
    found += part
  return found


def _echo():
  client, server = _pair()

  def serve():
    server.sendall(_receive_all(server)[::-1])
    server.close()

  thread = threads.Thread(target=serve)
  thread.start()
  for n in range(100):
    client.sendall(bytes([n]) * n)
  client.shutdown(net.SHUT_WR)
  found = _receive_all(client)
  thread.join()
  client.close()
  return found


def _large():
  """A sender has to wait for a reader that begins late."""
  client, server = _pair()
  data = os.urandom(1) * (1 << 23)
  thread = threads.Thread(target=lambda: client.sendall(data))
  thread.start()
  clock.sleep(0.05)
  left = len(data)
  while left:
    left -= server.recv_into(bytearray(1 << 16))
  thread.join()
  return left


def _ends():
  """A peer that has closed: the rest, the end, then a broken pipe."""
  client, server = _pair()
  server.sendall(b'last')
  server.close()
  found = [client.recv(100), client.recv(100)]
  for _ in range(3):
    try:
      client.send(b'x')
      clock.sleep(0.05)
    except OSError as error:
      found.append(error.errno in (errno.EPIPE, errno.ECONNRESET))
      break
  return found


def _reset():
  """A peer that closes without having read resets the connection."""
  client, server = _pair()
  client.sendall(b'never read')
  clock.sleep(0.05)
  server.close()
  clock.sleep(0.05)
  try:
    return client.recv(1)
  except OSError as error:
    return error.errno


def _refused():
  listener = _socket()
  listener.bind((_HOST, 0))
  listener.listen(1)
  where = listener.getsockname()
  listener.close()
  client = _socket()
  try:
    client.connect(where)
  except OSError as error:
    return error.errno
  return None


def _taken():
  one = _socket()
  one.bind((_HOST, 0))
  one.listen(1)
  other = _socket()
  try:
    other.bind(one.getsockname())
  except OSError as error:
    return error.errno
  finally:
    one.close()
  return None


def _would_block():
  client, server = _pair()
  client.setblocking(False)
  found = []
  try:
    client.recv(1)
  except BlockingIOError:
    found.append('blocks')
  server.sendall(b'ab')
  clock.sleep(0.05)
  found += [client.recv(1, net.MSG_PEEK), client.recv(1), client.recv(1)]
  return found


def _events():
  """Level- and edge-triggered events of an epoll, and its wake-up."""
  client, server = _pair()
  epoll, wake = net.epoll(), net.Wake()
  _opened.extend((epoll, wake))
  epoll.register(wake.number, net.EPOLLIN)
  epoll.register(server.fileno(), net.EPOLLIN)
  kinds = {wake.number: 'wake', server.fileno(): 'server'}

  def poll():
    return sorted(kinds[number] for number, _ in epoll.poll(0.02))

  found = [poll()]
  client.sendall(b'abc')
  clock.sleep(0.05)
  found += [poll(), poll()]
  server.recv(2)
  found.append(poll())
  server.recv(1)
  found.append(poll())
  wake.set()
  found.append(poll())
  wake.clear()
  epoll.modify(server.fileno(), net.EPOLLIN | net.EPOLLET)
  client.sendall(b'abc')
  clock.sleep(0.05)
  found += [poll(), poll()]
  client.sendall(b'd')
  clock.sleep(0.05)
  found.append(poll())
  client.close()
  clock.sleep(0.05)
  found.append(poll())
  epoll.unregister(server.fileno())
  found.append(poll())
  return found


def _least():
  """SO_RCVLOWAT: readable once that many bytes are there."""
  client, server = _pair()
  server.setsockopt(net.SOL_SOCKET, net.SO_RCVLOWAT, 3)
  poll = net.poll()
  poll.register(server.fileno(), net.EPOLLIN)
  found = []
  for part in (b'a', b'b', b'c'):
    client.sendall(part)
    clock.sleep(0.05)
    found.append(bool(poll.poll(20)))
  return found


def _timeouts():
  condition, event = threads.Condition(), threads.Event()
  with condition:
    found = [condition.wait(0.01)]
  found.append(event.wait(0.01))
  queue = threads.SimpleQueue()
  try:
    queue.get(timeout=0.01)
  except threads.Empty:
    found.append('empty')
  lock = threads.Lock()
  found += [lock.acquire(), lock.acquire(timeout=0.01), lock.acquire(False)]
  return found


def _handed_on():
  """Ten threads hand numbers on through a condition, in order."""
  condition, turn, order = threads.Condition(), [0], []

  def take(number):
    with condition:
      condition.wait_for(lambda: turn[0] == number)
      order.append(number)
      turn[0] += 1
      condition.notify_all()

  running = [threads.Thread(target=take, args=(n,)) for n in range(10)]
  for thread in reversed(running):
    thread.start()
  for thread in running:
    thread.join(_WAIT_S)
  return order


def _pool():
  with threads.ThreadPoolExecutor(3) as pool:
    squares = [*pool.map(lambda n: n * n, range(10))]
    failed = pool.submit(lambda: 1 // 0)
    done, left = threads.wait([failed], 5.0)
  return squares, type(failed.exception()), len(done), len(left)


def _reentrant():
  condition = threads.Condition()
  with condition, condition:
    return condition.wait(0.01)


def _timer():
  passed = []
  timer = threads.Timer(0.01, passed.append, ('late',))
  cancelled = threads.Timer(0.01, passed.append, ('never',))
  timer.start()
  cancelled.start()
  cancelled.cancel()
  timer.join(_WAIT_S)
  cancelled.join(_WAIT_S)
  return passed


def _locked():
  with tempfile.TemporaryDirectory() as folder:
    found = []
    for _ in range(2):
      descriptor = os.open(os.path.join(folder, 'lock'), os.O_RDWR | os.O_CREAT)
      found.append((descriptor, processes.lock_file(descriptor)))
    os.close(found[0][0])
    locked = [held for _, held in found]
    locked.append(processes.lock_file(found[1][0]))
    os.close(found[1][0])
  return locked


def _made_once():
  made = []

  class Thing:
    @processes.CachedProperty
    def part(self):
      made.append(self)
      return len(made)

  one, other = Thing(), Thing()
  return one.part, one.part, other.part


_PROGRAMS = (
  *(_echo, _large, _ends, _reset, _refused, _taken, _would_block, _events),
  *(_least, _timeouts, _handed_on, _pool, _reentrant, _timer, _locked),
  _made_once,
)


class SameTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (program.__name__.strip('_'), program) for program in _PROGRAMS
  )
  def test_a_program_has_the_same_outcome(self, program):
    expected = _on_host(program)
    for seed in range(5):
      self.assertEqual(_simulated(program, seed), expected)


class WorldTest(parameterized.TestCase):
  def _world(self, seed, **options):
    world = World(seed, **options)
    self.addCleanup(world.close)
    return world

  def test_a_seed_decides_everything(self):
    found = [self._race(seed) for seed in (*range(20), *range(20))]
    self.assertEqual(found[:20], found[20:])
    self.assertGreater(len({order for order, _ in found}), 5)

  def _race(self, seed):
    world, order = self._world(seed), []

    def run(number):
      for _ in range(3):
        clock.sleep(0.1)
        order.append(number)

    for number in range(4):
      world.start(f'{number}', f'10.0.0.{number}', lambda n=number: run(n))
    world.run(10.0)
    return tuple(order), world.scheduler.switches

  def test_time_passes_without_waiting_for_it(self):
    self.assertAlmostEqual(_simulated(self._sleep), 500.0, places=3)

  def _sleep(self):
    start = clock.monotonic()
    clock.sleep(500.0)
    return clock.monotonic() - start

  @parameterized.parameters(0, 3)
  def test_an_exit_code_is_that_of_the_process(self, code):
    world = self._world(0)

    def run():
      raise SystemExit(code)

    process = world.start('one', _HOST, run)
    self.assertEqual(world.run(1.0), 'all processes have ended')
    self.assertEqual(process.code, code)

  def test_a_killed_process_runs_no_further_code(self):
    world, ran = self._world(0), []

    def run():
      try:
        clock.sleep(1.0)
      finally:
        ran.append('cleaned up')

    process = world.start('one', _HOST, run)
    world.at(0.5, lambda: world.kill('one'))
    world.run(10.0)
    self.assertEqual((process.code, ran), (-9, []))

  def test_exit_now_ends_all_threads_at_once(self):
    world, ran = self._world(0), []

    def run():
      thread = threads.Thread(target=lambda: (clock.sleep(0.1), ran.append(1)))
      thread.start()
      try:
        processes.exit_now(75)
      finally:
        ran.append('cleaned up')

    process = world.start('one', _HOST, run)
    world.run(10.0)
    self.assertEqual((process.code, ran), (75, []))

  def test_a_process_waits_for_its_threads_but_daemons(self):
    world, ran = self._world(0), []

    def note(delay_s):
      clock.sleep(delay_s)
      ran.append(delay_s)

    def run():
      for daemon, delay_s in ((False, 0.2), (True, 0.1), (True, 0.3)):
        threads.Thread(target=note, args=(delay_s,), daemon=daemon).start()

    world.start('one', _HOST, run)
    world.run(10.0)
    self.assertEqual(ran, [0.1, 0.2])

  def test_a_handler_runs_in_the_main_thread_while_it_waits(self):
    world, found = self._world(0), []

    def handle(number, frame):
      found.append((number, threads.current_thread() is threads.main_thread()))

    def run():
      processes.handle_signal(processes.SIGTERM, handle)
      clock.sleep(1.0)
      found.append(round(clock.monotonic(), 1))

    process = world.start('one', _HOST, run)
    world.at(0.5, lambda: world.send('one', processes.SIGTERM))
    world.run(10.0)
    self.assertEqual(found, [(processes.SIGTERM, True), 1.0])
    self.assertEqual(process.code, 0)

  def test_a_signal_without_a_handler_kills(self):
    world = self._world(0)
    process = world.start('one', _HOST, lambda: clock.sleep(1.0))
    world.at(0.5, lambda: world.send('one', processes.SIGTERM))
    world.run(10.0)
    self.assertEqual(process.code, -15)

  def test_a_stopped_process_continues_where_it_was(self):
    world, found = self._world(0), []

    def run():
      for _ in range(10):
        clock.sleep(0.1)
        found.append(round(clock.monotonic(), 1))

    world.start('one', _HOST, run)
    world.at(0.45, lambda: world.send('one', 19))
    world.at(2.0, lambda: world.send('one', 18))
    world.run(10.0)
    self.assertEqual(found[:5], [0.1, 0.2, 0.3, 0.4, 2.0])

  def test_peers_of_a_killed_process_see_the_end(self):
    self.assertEqual(self._peer_of(lambda world: world.kill('b')), b'')

  def test_peers_of_a_lost_host_see_nothing_until_their_limit(self):
    ended = self._peer_of(lambda world: world.power_off('b'), limit_ms=0)
    self.assertIsNone(ended)

  @parameterized.parameters(('a', 'b'), ('b', 'a'))
  def test_a_cut_in_one_direction_ends_a_connection_by_its_limit(self, *ends):
    found = self._peer_of(lambda world: world.cut(*ends), limit_ms=700)
    self.assertEqual(found, errno.ETIMEDOUT)

  def test_what_was_sent_over_a_cut_arrives_after_it(self):
    def fault(world):
      world.cut('b', 'a')
      world.at(0.9, lambda: world.heal('b', 'a'))

    self.assertEqual(self._peer_of(fault, send_s=0.7), b'late')

  def _peer_of(self, fault, *, limit_ms=0, send_s=None):
    """Returns what host a receives from b, on which there is a fault."""
    world, found = self._world(0), []

    def serve():
      listener = net.Socket(net.AF_INET, net.SOCK_STREAM)
      listener.bind(('10.0.0.1', 5000))
      listener.listen(1)
      sock, _ = listener.accept()
      if limit_ms:
        sock.setsockopt(net.IPPROTO_TCP, net.TCP_USER_TIMEOUT, limit_ms)
      try:
        found.append(sock.recv(10))
      except OSError as error:
        found.append(error.errno)

    def talk():
      sock = net.Socket(net.AF_INET, net.SOCK_STREAM)
      sock.connect(('10.0.0.1', 5000))
      if send_s:
        clock.sleep(send_s)
        with contextlib.suppress(OSError):
          sock.sendall(b'late')
      clock.sleep(100.0)

    world.start('a', '10.0.0.1', serve)
    world.start('b', '10.0.0.2', talk)
    world.at(0.5, lambda: fault(world))
    world.run(10.0)
    return found[0] if found else None

  def test_a_rate_limits_what_arrives(self):
    world, took = self._world(0, rate_Bps=1000.0, latency_s=0.1), []

    def serve():
      listener = net.Socket(net.AF_INET, net.SOCK_STREAM)
      listener.bind(('10.0.0.1', 5000))
      listener.listen(1)
      sock, _ = listener.accept()
      start = clock.monotonic()
      _receive_all(sock)
      took.append(clock.monotonic() - start)

    def talk():
      sock = net.Socket(net.AF_INET, net.SOCK_STREAM)
      sock.connect(('10.0.0.1', 5000))
      sock.sendall(bytes(3000))
      sock.close()

    world.start('a', '10.0.0.1', serve)
    world.start('b', '10.0.0.2', talk)
    world.run(100.0)
    self.assertBetween(took[0], 3.0, 3.3)

  def test_each_process_has_values_of_its_own(self):
    world, found = self._world(0), []
    own = processes.Own(list)

    def run(name):
      own.get().append(name)
      clock.sleep(0.1)
      own.get().append(name)
      found.append(own.get())

    for name in 'ab':
      world.start(name, f'10.0.0.{ord(name)}', lambda name=name: run(name))
    world.run(10.0)
    self.assertCountEqual(found, [['a', 'a'], ['b', 'b']])

  def test_a_killed_process_loses_its_locks(self):
    world, found = self._world(0), []
    folder = self.enterContext(tempfile.TemporaryDirectory())

    def run(delay_s):
      clock.sleep(delay_s)
      descriptor = os.open(f'{folder}/lock', os.O_RDWR | os.O_CREAT)
      found.append(processes.lock_file(descriptor))
      clock.sleep(10.0)

    for number, delay_s in enumerate((0.1, 0.2, 1.0)):
      world.start(f'{number}', '10.0.0.1', lambda s=delay_s: run(s))
    world.at(0.5, lambda: world.kill('0'))
    world.run(100.0)
    self.assertEqual(found, [True, False, True])

  def test_close_ends_all_threads(self):
    before = threading.active_count()
    world = World(0)

    def run():
      for _ in range(3):
        threads.Thread(target=lambda: clock.sleep(1e6), daemon=True).start()
      clock.sleep(1e6)

    for name in 'abc':
      world.start(name, '10.0.0.1', run)
    world.at(1.0, lambda: world.kill('a'))
    world.run(10.0)
    self.assertGreater(threading.active_count(), before + 8)
    world.close()
    self.assertEqual(threading.active_count(), before)


if __name__ == '__main__':
  absltest.main()
