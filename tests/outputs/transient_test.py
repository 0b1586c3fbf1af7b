"""Tests for outputs.transient: kinds of errors, and waits of a start."""

import errno
import fcntl
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest, parameterized

from outputs import transient
from tests.support import locks


def _raised(error, cause):
  try:
    raise error from cause
  except Exception as raised:
    return raised


def _no_space():
  return OSError(errno.ENOSPC, 'No space left on device')


class IsTransientTest(parameterized.TestCase):
  @parameterized.parameters(
    *('EADDRINUSE', 'EAGAIN', 'EMFILE', 'ENFILE', 'ENOSPC', 'EIO', 'ESTALE'),
    *('ETIMEDOUT', 'EDQUOT', 'ENOMEM', 'ENOLCK', 'ECONNREFUSED'),
  )
  def test_a_state_of_the_system_is_transient(self, name):
    error = OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    self.assertTrue(transient.is_transient(error))

  @parameterized.parameters(
    *('ENOENT', 'EACCES', 'EPERM', 'EEXIST', 'ENOTDIR', 'EISDIR', 'EROFS'),
    *('EINVAL', 'ENAMETOOLONG', 'EADDRNOTAVAIL'),
  )
  def test_an_error_that_a_user_has_to_correct_is_not_transient(self, name):
    error = OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    self.assertFalse(transient.is_transient(error))

  def test_the_cause_of_an_error_decides(self):
    wrong = ValueError('config.epochs: expected')
    self.assertFalse(transient.is_transient(wrong))
    self.assertTrue(transient.is_transient(_raised(wrong, _no_space())))
    gone = FileNotFoundError(errno.ENOENT, 'No such file')
    self.assertFalse(transient.is_transient(_raised(wrong, gone)))
    full = ValueError("No space left on device [os_error_code='28']")
    self.assertTrue(transient.is_transient(_raised(OSError('step 3'), full)))
    told = OSError('Checkpoint 3 could not be written.  OSError: [Errno 28] No')
    self.assertTrue(transient.is_transient(told))
    unknown = socket.gaierror(socket.EAI_NONAME, 'Name not known')
    self.assertFalse(transient.is_transient(unknown))
    later = socket.gaierror(socket.EAI_AGAIN, 'Try again')
    self.assertTrue(transient.is_transient(later))

  def test_only_memory_and_descriptors_are_shortages_of_this_host(self):
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
      found = OSError(number, os.strerror(number))
      self.assertTrue(transient.is_shortage(found))
      self.assertTrue(transient.is_shortage(_raised(OSError('x'), found)))
    self.assertTrue(transient.is_shortage(MemoryError()))
    for other in (_no_space(), ValueError('x'), TimeoutError()):
      self.assertFalse(transient.is_shortage(other))

  def test_exit_codes_tell_launchers_whether_an_error_is_transient(self):
    for error, code in ((_no_space(), 75), (ValueError('wrong'), 1)):
      with self.assertRaises(SystemExit) as left:
        transient.leave(error)
      self.assertEqual(left.exception.code, code)


class RetryTest(absltest.TestCase):
  def test_a_transient_error_is_retried_until_success(self):
    errors = [_no_space(), OSError(errno.EMFILE, 'Too many open files')]

    def call():
      if errors:
        raise errors.pop(0)
      return 7

    with self.assertLogs('absl', 'WARNING') as logs:
      got = transient.retry(call, limit_s=lambda: 60.0, what='The start')
    self.assertEqual(got, 7)
    self.assertLen(logs.output, 2)
    self.assertIn('The start failed, and is tried again', logs.output[0])

  def test_retries_end_at_the_limit(self):
    def call():
      raise _no_space()

    start = time.monotonic()
    with self.assertRaisesRegex(OSError, 'No space'):
      transient.retry(call, limit_s=lambda: 0.3, what='The start')
    self.assertBetween(time.monotonic() - start, 0.3, 5.0)

  def test_a_permanent_error_is_not_retried(self):
    calls = []

    def call():
      calls.append(1)
      raise ValueError('wrong')

    with self.assertRaisesRegex(ValueError, 'wrong'):
      transient.retry(call, limit_s=lambda: 1 / 0, what='The start')
    self.assertLen(calls, 1)


class FolderLockTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def _lock(self, limit_s, **more):
    return transient.FolderLock(
      self.folder, busy='somebody has it', limit_s=limit_s, **more
    )

  def test_it_waits_for_the_release_and_logs_the_holder(self):
    with (
      locks.hold(self.folder, for_s=0.5) as pid,
      self.assertLogs('absl', 'WARNING') as logs,
    ):
      lock = self._lock(30.0)
    self.assertIn(f'process {pid} on {platform.node()}', logs.output[0])
    written = json.loads((self.folder / '.lock').read_text())
    self.assertEqual(written['pid'], os.getpid())
    lock.release()

  def test_it_waits_no_longer_than_its_limit(self):
    with locks.hold(self.folder) as pid:
      with self.assertRaisesRegex(transient.Busy, f'has it: process {pid} on'):
        self._lock(0.3)
      start = time.monotonic()
      with self.assertRaises(transient.Busy):
        self._lock(60.0, live_s=0.3)
      self.assertLess(time.monotonic() - start, 20.0)

  def test_a_lock_of_a_dead_or_far_process_may_still_go(self):
    # As NFS has it: the lock is there for a while, and its store is not.
    dead = subprocess.Popen([sys.executable, '-c', ''])
    dead.wait()
    here, far = platform.node(), f'not-{platform.node()}'
    for host, pid in ((here, dead.pid), (far, os.getpid())):
      with (self.folder / '.lock').open('w+') as file:
        file.write(json.dumps({'host': host, 'pid': pid, 'run': 'abc'}))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        start = time.monotonic()
        with self.assertRaises(transient.Busy):
          self._lock(0.6, live_s=0.0)
        self.assertGreaterEqual(time.monotonic() - start, 0.6)

  def test_a_lock_of_the_same_process_is_refused_at_once(self):
    lock = self._lock(60.0)
    start = time.monotonic()
    with self.assertRaisesRegex(transient.Busy, 'somebody has it'):
      self._lock(60.0)
    self.assertLess(time.monotonic() - start, 10.0)
    lock.release()
    self._lock(0.0).release()

  def test_it_stores_the_run_and_reads_invalid_json(self):
    lock = self._lock(0.0)
    self.assertEqual(lock.run, '')
    lock.record('5a5a5a5a')
    lock.release()
    lock = self._lock(0.0)
    self.assertEqual(lock.run, '5a5a5a5a')
    lock.release()
    (self.folder / '.lock').write_text('{"ho')
    self.assertEqual(self._lock(0.0).run, '')


if __name__ == '__main__':
  absltest.main()
