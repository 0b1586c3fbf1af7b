"""Rendezvous of the processes of a run, by files in the run's folder.

  token             a secret that only the user may read; created once, and
                    used by all later launches of the run
  rendezvous.json   the address of the coordinator, and the name of the
                    launch that the address belongs to

The coordinator writes both files atomically.  The other processes wait for
them, because the folder may be on a file system that shows files late (NFS).
A process ignores the address of an earlier launch, which another program may
have by now, and waits for that of its own launch.
"""

import contextlib
import errno
import ipaddress
import json
import os
import pathlib
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import logging

from cluster.network import sockets
from cluster.network.credentials import LEAST
from cluster.process.exits import Unmendable
from configs.checks import require
from outputs import atomic
from system import clock, net, processes

TOKEN, ADDRESS = 'token', 'rendezvous.json'
_TOKEN_BYTES = 32
_POLL_S = 0.1
_LOG_INTERVAL_S = 10.0  # Between two log lines of a wait.
_FLAGS = '--coordinator, SYNCOPATE_COORDINATOR or MASTER_ADDR'


class Place(NamedTuple):
  """The coordinator's address and the token, as processes need to connect.

  Attributes:
    coordinator: HOST:PORT at which the coordinator listens.
    token_file: Path of the file with the secret of the run.
  """

  coordinator: str
  token_file: str


def host(
  folder: pathlib.Path,
  place: Place,
  *,
  address: str,
  launch: str,
  ports: Callable[[], int],
) -> Place:
  """Creates the rendezvous files that are needed, as the coordinator.

  Args:
    folder: Folder of the run, to which no other process writes.
    place: Address and token file that flags or the environment give; '' for
      those that files are to provide.
    address: Address that this process listens on.
    launch: Name of this launch of all processes.
    ports: Returns a free port.

  Returns:
    The complete place.

  Raises:
    ValueError: If the given address is not one of this process.
    OSError: If a file cannot be written.
  """
  coordinator, token_file = place
  if coordinator:
    check_address(coordinator, address)
  if not token_file:
    token_file = str(make_token(folder / TOKEN))
  if not coordinator:
    coordinator = _publish(folder / ADDRESS, address, launch, ports)
  return Place(coordinator, token_file)


def join(
  folder: pathlib.Path, place: Place, *, launch: str, limit_s: float
) -> Place:
  """Waits for the rendezvous files that are needed, as any other process.

  Args:
    folder: Folder of the run.
    place: Address and token file that flags or the environment give; '' for
      those that files provide.
    launch: Name of this launch of all processes.
    limit_s: Seconds to wait for both files together.

  Returns:
    The complete place.

  Raises:
    Unmendable: If a file is missing or invalid at the end; names it.
    ValueError: If this user may not read a file.
  """
  deadline = clock.monotonic() + limit_s
  coordinator, token_file = place
  if not token_file:
    path = folder / TOKEN
    _wait(path, 'the token of the run', _token_state, deadline, limit_s)
    token_file = str(path)
  if not coordinator:
    path = folder / ADDRESS
    coordinator = _wait(
      path,
      'the address of the coordinator',
      lambda text: _address_state(text, launch),
      deadline,
      limit_s,
    )
  return Place(coordinator, token_file)


def make_token(path: pathlib.Path) -> pathlib.Path:
  """Creates a file with a secret that only the user may read.

  A valid file stays as it is.  A file that is empty or too short, as an
  interrupted write may leave it, is replaced.

  Args:
    path: Path of the file, in an existing folder.

  Returns:
    The same path.

  Raises:
    OSError: If the file cannot be read or created.
  """
  try:
    broken = _token_state(path.read_text(errors='replace'))[1]
  except FileNotFoundError:
    broken = ''
  else:
    if not broken:
      return path
    logging.warning('%s is replaced: %s.', path, broken)
  text = secrets.token_hex(_TOKEN_BYTES) + '\n'
  if broken:
    atomic.write(path, text, mode=0o600)
  else:
    _write_once(path, text)
  return path


def check_address(coordinator: str, address: str) -> None:
  """Checks that the coordinator listens at the address that others were given.

  Accepts a name that this host cannot resolve, as other hosts may.  Accepts
  this host's own name if it resolves to a loopback address here: many systems
  map their own name to 127.0.1.1, while other hosts see a real address.

  Args:
    coordinator: HOST:PORT as flags or the environment give it.
    address: Address that this process listens on.

  Raises:
    ValueError: If HOST stands for other addresses only.
  """
  name, _ = sockets.split(coordinator)
  family = net.AF_INET6 if ':' in address else net.AF_INET
  try:
    found = net.getaddrinfo(name, None, family, net.SOCK_STREAM)
  except OSError as error:
    expected = f'a name or an address of the kind of {address}'
    require(not _is_number(name), _FLAGS, expected, coordinator)
    logging.info(
      '%s is not known on this host (%s): others have to find %s by it.',
      name,
      error,
      address,
    )
    return
  there = sorted({str(each[4][0]) for each in found})
  own = name.partition('.')[0] == net.gethostname().partition('.')[0]
  if own and all(ipaddress.ip_address(each).is_loopback for each in there):
    return
  expected = (
    f'{address}, at which this process, the coordinator, listens as '
    f'config.cluster.interface says, or a name of it; {name} is '
    f'{", ".join(there)}'
  )
  require(address in there, _FLAGS, expected, coordinator)


def _publish(
  path: pathlib.Path, address: str, launch: str, ports: Callable[[], int]
) -> str:
  """Writes the address of the coordinator into its file; returns it.

  A coordinator that restarts within a launch keeps its address, because the
  other processes reconnect to that.

  Args:
    path: Path of the file.
    address: Address that this process listens on.
    launch: Name of this launch.
    ports: Returns a free port.
  """
  with contextlib.suppress(OSError):
    before, _ = _address_state(path.read_text(errors='replace'), launch)
    if before and sockets.split(before)[0] == address:
      return before
  coordinator = sockets.join(address, ports())
  content = {
    'address': coordinator,
    'launch': launch,
    'host': net.gethostname(),
    'pid': processes.getpid(),
    'time': clock.wall(),
  }
  atomic.write_object(path, content, mode=0o600)
  return coordinator


def _token_state(text: str) -> tuple[str, str]:
  """Returns the token in a text and '', or '' and why the text is invalid."""
  token = text.strip()
  if len(token) >= LEAST:
    return token, ''
  return '', f'it has {len(token)} characters, and not {LEAST} or more'


def _address_state(text: str, launch: str) -> tuple[str, str]:
  """Returns the address in a text and '', or '' and why it is invalid."""
  try:
    content: Any = json.loads(text)
    address, of = content['address'], content['launch']
    name, port = sockets.split(address)
    valid = _is_number(name) and 0 < port < 2**16
  except (ValueError, LookupError, TypeError, AttributeError):
    valid = False
  if not valid:
    return '', 'it holds no address'
  if of != launch:
    return '', f'it is of another launch, {of!r}, and not of {launch!r}'
  return address, ''


def _is_number(host: str) -> bool:
  """Returns whether a host is given as an address, not by name."""
  try:
    ipaddress.ip_address(host)
  except ValueError:
    return False
  return True


def _wait(
  path: pathlib.Path,
  what: str,
  state: Callable[[str], tuple[str, str]],
  deadline: float,
  limit_s: float,
) -> str:
  """Waits until a file has valid content; returns the content.

  Args:
    path: Path of the file.
    what: Name of the content, for logs and errors.
    state: Returns the content of a text and '', or '' and why it is invalid.
    deadline: End of the wait, monotonic seconds.
    limit_s: Limit of the whole rendezvous, seconds, for logs and errors.

  Raises:
    Unmendable: If the file is missing or invalid at the deadline.
    ValueError: If this user may not read the file.
  """
  start = clock.monotonic()
  log_at = start + min(_LOG_INTERVAL_S, 1.0)
  while True:
    found, why = '', 'it does not exist'
    try:
      # NFS caches that a file is missing; listing its folder ends that.
      os.listdir(path.parent)
      found, why = state(path.read_text(errors='replace'))
    except PermissionError as error:
      raise ValueError(
        f'workdir: expected {what} in {path}, of the user who has started the '
        f'coordinator, got {error}.'
      ) from error
    except FileNotFoundError:
      pass
    except OSError as error:  # ESTALE: the file is being replaced.
      why = str(error)
    if found:
      return found
    now = clock.monotonic()
    if now >= deadline:
      raise Unmendable(
        f'Expected {what} in {path} within {limit_s:g} s, which the '
        f'coordinator writes: {why}. The coordinator has not started, or has '
        'another --workdir, or this host does not share the folder.'
      )
    if now >= log_at:
      log_at = now + _LOG_INTERVAL_S
      logging.info(
        'Waiting for %s in %s, which the coordinator writes, since %.0f s of '
        '%g s: %s.',
        what,
        path,
        now - start,
        limit_s,
        why,
      )
    clock.sleep(max(min(_POLL_S, deadline - now), 0.0))


def _write_once(path: pathlib.Path, text: str) -> None:
  """Creates a file that only the user may read, unless it exists by now."""
  new = path.with_name(f'.{path.name}.{secrets.token_hex(8)}')
  atomic.write(new, text, mode=0o600)
  try:
    if not _link(new, path):
      new.replace(path)
  finally:
    new.unlink(missing_ok=True)
  atomic.sync_folder(path.parent)


def _link(new: pathlib.Path, path: pathlib.Path) -> bool:
  """Links a new file to a name, unless another process has created that.

  Args:
    new: Path of the new file.
    path: The name.

  Returns:
    Whether `path` exists now; False if the file system has no hard links.

  Raises:
    OSError: If the link fails for another reason.
  """
  try:
    path.hardlink_to(new)
  except FileExistsError:
    logging.info('%s was created by another process.', path)
  except OSError as error:
    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
      raise
    return False
  return True
