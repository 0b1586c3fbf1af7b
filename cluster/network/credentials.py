"""Credentials of a run: reads token, certificate and key from files.

If a config field names a file, the run uses its content.  A file that is empty
or cannot be read is an error: the run never starts without that credential.
The token in a run's folder has to be a file of this user: whoever else has put
it there knows the secret.
"""

import os
import stat
import tempfile
from typing import Any

from absl import logging

from cluster.network.handshake import Security
from cluster.network.interfaces import is_loopback
from configs.checks import require

LEAST = 16  # Characters of a token: an eavesdropper can guess it offline.
_HOW = '(umask 077; openssl rand -hex 32 > FILE) makes one'
_PEM = {'certificate': b'-----BEGIN CERTIFICATE', 'key': b'PRIVATE KEY-----'}


def security(cluster: Any, address: str, token_file: str = '') -> Security:
  """Returns the credentials that a config names.

  Only logs a warning if other users may read a secret that the config names, or
  if it is a file of another user.  On some file systems, such as those of
  Kubernetes secrets, owners and modes mean nothing: an error there would make
  users run without a secret.

  Args:
    cluster: `config.cluster`.
    address: Address that this process listens on.
    token_file: Token file in the run's folder, if the config names none.

  Raises:
    ValueError: If a file is missing, cannot be read or has other content, if
      the token in the run's folder is another user's, or if other hosts can
      reach the address and there is no token.
  """
  is_named = bool(cluster.token_file)
  token_file = cluster.token_file or token_file
  content = _content('token', token_file, may_be_of_others=is_named)
  token = content.decode(errors='replace').strip()
  if token_file:
    expected = f'a secret of {LEAST} characters or more ({_HOW})'
    long = len(token) >= LEAST
    _require(long, 'token', expected, f'{len(token)} in {token_file}')
  else:
    expected = f'a file with a secret, as others can reach {address} ({_HOW})'
    _require(is_loopback(address), 'token', expected, '')
  pem = {name: _content(name, cluster[f'{name}_file']) for name in _PEM}
  for name, mark in _PEM.items():
    given = cluster[f'{name}_file']
    _require(not given or mark in pem[name], name, f'PEM, a {name}', given)
  whole = bool(pem['certificate']) or not pem['key']
  _require(whole, 'certificate', 'the certificate of key_file', '')
  needed = bool(pem['certificate']) or not cluster.tls_name
  expected = "'' without certificate_file"
  require(needed, 'config.cluster.tls_name', expected, cluster.tls_name)
  return Security(token=token, tls_name=cluster.tls_name, **pem)


def _content(name: str, given: str, *, may_be_of_others: bool = True) -> bytes:
  """Returns the content of a field's file; b'' if the field names none.

  Args:
    name: Field without `_file`.
    given: Path of the file.
    may_be_of_others: Whether the file may be another user's, or a link.
  """
  if not given:
    return b''
  flags = os.O_CLOEXEC | (0 if may_be_of_others else os.O_NOFOLLOW)
  try:
    with os.fdopen(os.open(given, flags), 'rb') as file:
      content, status = file.read(), os.fstat(file.fileno())
  except OSError as error:
    raise ValueError(
      f'config.cluster.{name}_file: expected a file, got {error}.'
    ) from error
  filled = bool(content.strip())
  _require(filled, name, 'a file that is not empty', given)
  if not may_be_of_others:
    _require_own(given, status.st_uid)
  others = status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
  others = others or status.st_uid != os.geteuid()
  if name != 'certificate' and others:
    logging.warning(
      'config.cluster.%s_file: others than you may read or change %s; chmod '
      '600 ends that, in a file of your own.',
      name,
      given,
    )
  return content


def _require_own(given: str, owner: int) -> None:
  """Checks that the token in a run's folder belongs to this user.

  Root's files are no exception: a stranger may have linked a public one there.

  Args:
    given: Path of the file.
    owner: Its owner.

  Raises:
    ValueError: If it belongs to another user.
  """
  user = os.geteuid()
  is_own = owner in (user, _owner_of_new_files(os.path.dirname(given)))
  expected = (
    f'{given} to be a file of this user ({user}), as whoever has put it there '
    'knows the secret; delete it, or name a file with config.cluster.token_file'
  )
  require(is_own, 'workdir', expected, f'a file of user {owner}')


def _owner_of_new_files(folder: str) -> int | None:
  """Returns whom the file system shows as the owner of this process's files.

  NFS may show all files as those of one user.  None if the folder cannot be
  written.
  """
  try:
    with tempfile.TemporaryFile(dir=folder) as file:
      return os.fstat(file.fileno()).st_uid
  except OSError:
    return None


def _require(valid: bool, name: str, expected: str, got: str) -> None:
  require(valid, f'config.cluster.{name}_file', expected, got)
