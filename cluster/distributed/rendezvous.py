"""Files in a run's folder by which its processes find and trust each other.

  token             a secret, which the user alone may read; made once, and
                    used by all later starts of the run as well
  rendezvous.json   the address of the lead, and the launch that it is of

The lead writes both, whole or not at all, and the other processes wait for
them, as the folder may be on a file system that shows files late (NFS).  A file
of an earlier launch of the run is waited out: its address may be anybody's by
now.
"""

import contextlib
import errno
import ipaddress
import json
import os
import pathlib
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import logging

from cluster.transport.heart import Unmendable
from cluster.transport.trust import LEAST
from configs.checks import require
from outputs import atomic

TOKEN, ADDRESS = 'token', 'rendezvous.json'
_TOKEN_BYTES = 32
_LOOK_S = 0.1
_TELL_S = 10.0  # Between two lines on what is waited for.
_FLAGS = '--lead, SYNCOPATE_LEAD or MASTER_ADDR'


class Place(NamedTuple):
  """Where the processes of a run meet.

  Attributes:
    lead: HOST:PORT where the lead listens.
    token_file: The file with the secret of the run.
  """

  lead: str
  token_file: str


def host(
  folder: pathlib.Path,
  place: Place,
  *,
  address: str,
  launch: str,
  ports: Callable[[], int],
) -> Place:
  """Makes what is missing of a place, as the process that leads.

  Args:
    folder: Of the run, which no other process writes to.
    place: What is given of it, '' for what is not.
    address: IPv4, that this process listens on.
    launch: Name of this start of all processes.
    ports: Returns a free port.

  Raises:
    ValueError: If the given address is not one of this process.
    OSError: If a file cannot be written.
  """
  lead, token_file = place
  if lead:
    check_address(lead, address)
  if not token_file:
    token_file = str(make_token(folder / TOKEN))
  if not lead:
    lead = _publish(folder / ADDRESS, address, launch, ports)
  return Place(lead, token_file)


def join(
  folder: pathlib.Path, place: Place, *, launch: str, limit_s: float
) -> Place:
  """Waits for what is missing of a place, as any other process.

  Args:
    folder: Of the run.
    place: What is given of it, '' for what is not.
    launch: Name of this start of all processes.
    limit_s: Seconds to wait for all of it.

  Raises:
    Unmendable: If it is not there in time; says what is not.
    ValueError: If this user may not read a file.
  """
  deadline = time.monotonic() + limit_s
  lead, token_file = place
  if not token_file:
    path = folder / TOKEN
    _wait(path, 'the token of the run', _token_state, deadline, limit_s)
    token_file = str(path)
  if not lead:
    path = folder / ADDRESS
    lead = _wait(
      path,
      'the address of the lead',
      lambda text: _address_state(text, launch),
      deadline,
      limit_s,
    )
  return Place(lead, token_file)


def make_token(path: pathlib.Path) -> pathlib.Path:
  """Makes a file with a secret, which the user alone may read.

  A usable one stays.  One that is empty or too short, as an interrupted write
  leaves it, is replaced.

  Args:
    path: Of the file, in a folder that there is.

  Raises:
    OSError: If it cannot be read or made.
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


def check_address(lead: str, address: str) -> None:
  """Checks that a process that leads listens where others look for it.

  A name that this host does not know is one that others may know.  And many
  systems have their own name stand for 127.0.1.1, which is so for them alone.

  Args:
    lead: HOST:PORT as it was given.
    address: IPv4, that this process listens on.

  Raises:
    ValueError: If the host is another address.
  """
  name = lead.rpartition(':')[0]
  try:
    found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
  except OSError as error:
    logging.info(
      '%s is not known on this host (%s): others have to find %s by it.',
      name,
      error,
      address,
    )
    require(not name.startswith('['), _FLAGS, 'a name or IPv4 address', name)
    return
  there = sorted({each[4][0] for each in found})
  own = name.partition('.')[0] == socket.gethostname().partition('.')[0]
  if own and all(ipaddress.IPv4Address(each).is_loopback for each in there):
    return
  expected = f'{address}, where this process, which leads, listens, as '
  expected += f'config.cluster.interface says, or a name of it; {name} is '
  require(address in there, _FLAGS, f'{expected}{", ".join(there)}', lead)


def _publish(
  path: pathlib.Path, address: str, launch: str, ports: Callable[[], int]
) -> str:
  """Writes the address of the lead into its file; returns it.

  A lead that is started again in the same launch has the same one, at which
  the others look for it.
  """
  with contextlib.suppress(OSError):
    before, _ = _address_state(path.read_text(errors='replace'), launch)
    if before.rpartition(':')[0] == address:
      return before
  lead = f'{address}:{ports()}'
  content = {
    'address': lead,
    'launch': launch,
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'time': time.time(),
  }
  atomic.write(path, json.dumps(content, indent=2) + '\n', mode=0o600)
  return lead


def _token_state(text: str) -> tuple[str, str]:
  """Returns a token, or '' and what is wrong with the text of its file."""
  token = text.strip()
  if len(token) >= LEAST:
    return token, ''
  return '', f'it has {len(token)} characters, and not {LEAST} or more'


def _address_state(text: str, launch: str) -> tuple[str, str]:
  """Returns the lead's address, or '' and what is wrong with the file."""
  try:
    content: Any = json.loads(text)
    address, of = content['address'], content['launch']
    name, _, port = address.rpartition(':')
    ipaddress.IPv4Address(name)
    valid = 0 < int(port) < 2**16
  except (ValueError, LookupError, TypeError, AttributeError):
    valid = False
  if not valid:
    return '', 'it holds no address'
  if of != launch:
    return '', f'it is of another launch, {of!r}, and not of {launch!r}'
  return address, ''


def _wait(
  path: pathlib.Path,
  what: str,
  state: Callable[[str], tuple[str, str]],
  deadline: float,
  limit_s: float,
) -> str:
  """Returns what a file holds, once it does.

  Args:
    path: Of the file.
    what: It is waited for.
    state: Returns what a text holds, or '' and what is wrong with it.
    deadline: Until when, monotonic seconds.
    limit_s: How long that is from the beginning, seconds.

  Raises:
    Unmendable: If it does not in time.
    ValueError: If this user may not read the file.
  """
  start = time.monotonic()
  tell_at = start + min(_TELL_S, 1.0)
  while True:
    found, why = '', 'it is not there'
    try:
      # NFS remembers that a file was not there until its folder is looked at.
      os.listdir(path.parent)
      found, why = state(path.read_text(errors='replace'))
    except PermissionError as error:
      raise ValueError(
        f'workdir: expected {what} in {path}, of the user who has started the '
        f'lead, got {error}.'
      ) from error
    except FileNotFoundError:
      pass
    except OSError as error:  # ESTALE: it is being replaced.
      why = str(error)
    if found:
      return found
    now = time.monotonic()
    if now >= deadline:
      raise Unmendable(
        f'Expected {what} in {path} within {limit_s:g} s, which the lead '
        f'writes: {why}. The lead has not started, or has another --workdir, '
        'or this host does not share the folder.'
      )
    if now >= tell_at:
      tell_at = now + _TELL_S
      logging.info(
        'Waiting for %s in %s, which the lead writes, since %.0f s of %g s: '
        '%s.',
        what,
        path,
        now - start,
        limit_s,
        why,
      )
    time.sleep(max(min(_LOOK_S, deadline - now), 0.0))


def _write_once(path: pathlib.Path, text: str) -> None:
  """Writes a file for the user alone, unless another process has made it."""
  new = path.with_name(f'.{path.name}.{secrets.token_hex(8)}')
  atomic.write(new, text, mode=0o600)
  try:
    if not _linked(new, path):
      new.replace(path)
  finally:
    new.unlink(missing_ok=True)
  atomic.sync_folder(path.parent)


def _linked(new: pathlib.Path, path: pathlib.Path) -> bool:
  """Gives a file its name if nobody has it; False if links are not possible."""
  try:
    path.hardlink_to(new)
  except FileExistsError:
    logging.info('%s has been made by another process.', path)
  except OSError as error:
    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
      raise
    return False
  return True
