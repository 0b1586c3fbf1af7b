"""Tests for cluster.membership.rendezvous_files."""

import errno
import itertools
import json
import os
import pathlib
import socket
import stat
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.membership import rendezvous_files
from cluster.membership.rendezvous_files import Place
from cluster.process.exits import Unmendable
from system import net

_SECRET = 'a secret of sixteen or more'
_HERE = '10.0.0.7'
_LAUNCH = 'slurm job 7 step 0 restart 0'
_NOTHING = Place('', '')


class _Case(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.token = self.folder / 'token'
    self.address = self.folder / 'rendezvous.json'
    self._ports = itertools.count(20000)

  def _host(self, place=_NOTHING, *, address=_HERE, launch=_LAUNCH):
    return rendezvous_files.host(
      self.folder,
      place,
      address=address,
      launch=launch,
      ports=lambda: next(self._ports),
    )

  def _join(self, place=_NOTHING, *, launch=_LAUNCH, limit_s=30.0):
    return rendezvous_files.join(
      self.folder, place, launch=launch, limit_s=limit_s
    )


class MeetTest(_Case):
  def test_processes_wait_for_the_coordinators_files(self):
    with ThreadPoolExecutor(3) as pool:
      joined = [pool.submit(self._join) for _ in range(3)]
      time.sleep(0.3)
      self.assertFalse(any(each.done() for each in joined))
      place = self._host()
      self.assertEqual([each.result() for each in joined], 3 * [place])
    self.assertEqual(place, Place(f'{_HERE}:20000', str(self.token)))
    names = sorted(os.listdir(self.folder))
    self.assertEqual(names, ['rendezvous.json', 'token'])

  def test_given_values_are_neither_written_nor_awaited(self):
    given = Place(f'{_HERE}:61500', '/secret/token')
    self.assertEqual(self._host(given), given)
    self.assertEqual(self._join(given, limit_s=0.0), given)
    self.assertEmpty(os.listdir(self.folder))

  def test_a_restarted_coordinator_keeps_its_address(self):
    first = self._host()
    self.assertEqual(self._host(), first)
    self.assertNotEqual(
      self._host(address='10.0.0.8').coordinator, first.coordinator
    )

  def test_an_address_of_an_earlier_launch_is_ignored(self):
    stale, launch = self._host(), 'slurm job 7 step 0 restart 1'
    with (
      ThreadPoolExecutor(1) as pool,
      self.assertLogs('absl', level='INFO') as logs,
    ):
      joined = pool.submit(self._join, launch=launch)
      time.sleep(1.5)
      self.assertFalse(joined.done())
      place = self._host(launch=launch)
      self.assertEqual(joined.result(), place)
    self.assertNotEqual(place.coordinator, stale.coordinator)
    self.assertEqual(place.token_file, stale.token_file)
    self.assertRegex(
      '\n'.join(logs.output),
      rf'Waiting for the address of the coordinator in {self.address}, which '
      ".* since 1 s of 30 s: it is of another launch, 'slurm job 7 step 0",
    )

  @parameterized.parameters(
    ('', 'holds no'), ('{"addr', 'no'), ('[]', 'no'), ('{"address": 7}', 'no')
  )
  def test_an_invalid_address_is_awaited_and_replaced(self, text, why):
    self.address.write_text(text)
    self._host(Place(f'{_HERE}:1', ''))
    with self.assertRaisesRegex(Unmendable, f'within 0.2 s, .* {why}'):
      self._join(limit_s=0.2)
    coordinator = self._host().coordinator
    self.assertEqual(self._join().coordinator, coordinator)
    self.assertEqual(
      json.loads(self.address.read_text())['address'], coordinator
    )

  def test_the_end_of_a_wait_names_the_file(self):
    message = f'Expected the token of the run in {self.token} within 0.3 s.*'
    message += (
      'it does not exist. The coordinator has not started, or has another'
    )
    start = time.monotonic()
    with self.assertRaisesRegex(Unmendable, message):
      self._join(limit_s=0.3)
    self.assertBetween(time.monotonic() - start, 0.3, 5.0)
    self.token.write_text(_SECRET)
    message = f'the address of the coordinator in {self.address}'
    with self.assertRaisesRegex(Unmendable, message):
      self._join(limit_s=0.0)

  def test_a_file_that_appears_late_or_is_replaced_is_awaited(self):
    """On NFS, a file may be empty or stale for a while."""
    self.token.touch()
    read, stale = pathlib.Path.read_text, OSError(errno.ESTALE, 'Stale handle')
    results = [stale, '', 'short', _SECRET]

    def reads(path, **how):
      if path != self.token or not results:
        return read(path, **how)
      result = results.pop(0)
      if isinstance(result, OSError):
        raise result
      return result

    with mock.patch.object(pathlib.Path, 'read_text', reads):
      place = self._join(Place('a:1', ''))
    self.assertEqual(place.token_file, str(self.token))
    self.assertEmpty(results)

  def test_a_token_of_another_user_is_refused_at_once(self):
    self.token.write_text(_SECRET)
    denied = PermissionError(errno.EACCES, 'Permission denied')
    with (
      mock.patch.object(pathlib.Path, 'read_text', side_effect=denied),
      self.assertRaisesRegex(ValueError, 'workdir: .* of the user who has st'),
    ):
      self._join()


class TokenTest(_Case):
  def test_a_token_is_created_once_and_only_the_user_can_read_it(self):
    before = os.umask(0)
    try:
      # In a thread of its own, as Python makes its umask known to all.
      with ThreadPoolExecutor(1) as pool:
        list(pool.map(rendezvous_files.make_token, 3 * [self.token]))
      self._host()
    finally:
      os.umask(before)
    for path in (self.token, self.address):
      self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
    self.assertRegex(self.token.read_text(), '^[0-9a-f]{64}\n$')
    other = rendezvous_files.make_token(self.folder / 'other')
    self.assertNotEqual(other.read_text(), self.token.read_text())

  def test_a_valid_token_is_kept(self):
    self.token.write_text(_SECRET)
    self.assertEqual(rendezvous_files.make_token(self.token), self.token)
    self.assertEqual(self.token.read_text(), _SECRET)

  @parameterized.parameters('', ' \n', 'short')
  def test_a_broken_token_is_replaced(self, text):
    self.token.write_text(text)
    self.token.chmod(0o644)
    with self.assertLogs(level='WARNING') as logs:
      rendezvous_files.make_token(self.token)
    self.assertIn('is replaced: it has', logs.output[0])
    self.assertLen(self.token.read_text(), 65)
    self.assertEqual(stat.S_IMODE(self.token.stat().st_mode), 0o600)
    self.assertEqual(os.listdir(self.folder), ['token'])

  def test_simultaneous_processes_use_the_first_token(self):
    link = pathlib.Path.hardlink_to

    def late(path, target):
      path.write_text(_SECRET)
      link(path, target)

    with mock.patch.object(pathlib.Path, 'hardlink_to', late):
      rendezvous_files.make_token(self.token)
    self.assertEqual(self.token.read_text(), _SECRET)
    self.assertEqual(os.listdir(self.folder), ['token'])

  def test_file_systems_without_hard_links_are_supported(self):
    error = OSError(errno.EPERM, 'Operation not permitted')
    with mock.patch.object(pathlib.Path, 'hardlink_to', side_effect=error):
      rendezvous_files.make_token(self.token)
    self.assertLen(self.token.read_text(), 65)
    self.assertEqual(os.listdir(self.folder), ['token'])

  def test_readers_see_a_whole_token_or_none(self):
    stop, seen = threading.Event(), set()

    def watch():
      while not stop.is_set():
        try:
          seen.add(len(self.token.read_text()))
        except FileNotFoundError:
          seen.add(None)

    with ThreadPoolExecutor(1) as pool:
      watching = pool.submit(watch)
      for _ in range(50):
        rendezvous_files.make_token(self.token)
        self.token.unlink()
      stop.set()
      watching.result()
    self.assertContainsSubset(seen, {None, 65})


class AddressTest(parameterized.TestCase):
  def _names(self, **names):
    """Resolves names to addresses on this host, which is host0."""

    def find(name, *_):
      if name not in names:
        raise socket.gaierror(socket.EAI_NONAME, 'Name not known')
      return [(0, 0, 0, '', (each, 0)) for each in names[name].split()]

    for function, stand_in in (
      ('getaddrinfo', find),
      ('gethostname', lambda: 'host0.example'),
    ):
      self.enter_context(mock.patch.object(net, function, stand_in))

  @parameterized.parameters(
    ('host0', _HERE),
    ('host0', f'192.0.2.1 {_HERE}'),
    ('host0', '127.0.1.1'),  # Debian's own name.
    ('other', _HERE),
  )
  def test_names_of_the_coordinators_address_are_accepted(self, name, there):
    self._names(**{name: there})
    rendezvous_files.check_address(f'{name}:61500', _HERE)

  def test_a_name_unknown_to_this_host_is_accepted(self):
    self._names()
    with self.assertLogs('absl', level='INFO') as logs:
      rendezvous_files.check_address('pod-0.run:8476', _HERE)
    self.assertIn('pod-0.run is not known on this host', logs.output[0])

  @parameterized.parameters(
    ('host0', '192.0.2.1', 'host0 is 192.0.2.1'),
    ('localhost', '127.0.0.1', 'localhost is 127.0.0.1'),
    ('other', '127.0.1.1', 'other is 127.0.1.1'),
    ('[::1]', '', 'expected a name or an address of the kind of'),
  )
  def test_other_addresses_are_refused_at_once(self, name, there, message):
    self._names(**({name: there} if there else {}))
    with self.assertRaisesRegex(
      ValueError, rf'--coordinator, .*{message}.* got'
    ):
      rendezvous_files.check_address(f'{name}:61500', _HERE)


if __name__ == '__main__':
  absltest.main()
