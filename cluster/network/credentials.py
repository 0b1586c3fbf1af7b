"""Credentials of a run: reads token, certificate and key from files.

If a config field names a file, the run uses its content.  A file that is empty
or cannot be read is an error: the run never starts without that credential.
"""

import os
import pathlib
import stat
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

  Only logs a warning if other users may read a secret.  On some file systems,
  such as those of Kubernetes secrets, file modes mean nothing: an error there
  would make users run without a secret.

  Args:
    cluster: `config.cluster`.
    address: Address that this process listens on.
    token_file: Token file of the run, if the config names none.

  Raises:
    ValueError: If a file is missing, cannot be read or has other content, or if
      other hosts can reach the address and there is no token.
  """
  token_file = cluster.token_file or token_file
  token = _content('token', token_file).decode(errors='replace').strip()
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


def _content(name: str, given: str) -> bytes:
  """Returns the content of a field's file; b'' if the field names none."""
  if not given:
    return b''
  try:
    content = pathlib.Path(given).read_bytes()
    status = os.stat(given)
  except OSError as error:
    raise ValueError(
      f'config.cluster.{name}_file: expected a file, got {error}.'
    ) from error
  filled = bool(content.strip())
  _require(filled, name, 'a file that is not empty', given)
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


def _require(valid: bool, name: str, expected: str, got: str) -> None:
  require(valid, f'config.cluster.{name}_file', expected, got)
