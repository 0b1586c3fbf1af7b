"""Certificates for tests, each with a new key, created by openssl."""

import pathlib
import subprocess
import tempfile

from cluster.network.handshake import Security
from tests.support import requires

_LOOPBACK = 'IP:127.0.0.1'


def write(folder: pathlib.Path, name: str = _LOOPBACK) -> list[pathlib.Path]:
  """Writes a new certificate of a name and its key; returns both files.

  Skips the test, or fails it, without openssl (see `tests.support.requires`).
  """
  requires.program('openssl')
  certificate, key = folder / 'certificate', folder / 'key'
  command = (
    'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes '
    f'-days 1 -subj /CN=syncopate -addext subjectAltName={name} -keyout {key} '
    f'-out {certificate}'
  )
  subprocess.run(command.split(), check=True, capture_output=True)
  return [certificate, key]


def make_security(token: str, name: str = _LOOPBACK) -> Security:
  """Returns credentials with a token and a new certificate."""
  with tempfile.TemporaryDirectory() as folder:
    files = write(pathlib.Path(folder), name)
    return Security(token, *(file.read_bytes() for file in files))
