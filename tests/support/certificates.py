"""Certificates for tests, each with a key of its own, created by openssl."""

import pathlib
import subprocess
import tempfile

from cluster.network.handshake import Security

_LOOPBACK = 'IP:127.0.0.1'


def written(folder: pathlib.Path, name: str = _LOOPBACK) -> list[pathlib.Path]:
  """Returns the files of a new certificate of a name, and of its key."""
  certificate, key = folder / 'certificate', folder / 'key'
  command = (
    'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes '
    f'-days 1 -subj /CN=syncopate -addext subjectAltName={name} -keyout {key} '
    f'-out {certificate}'
  )
  subprocess.run(command.split(), check=True, capture_output=True)
  return [certificate, key]


def certified(token: str, name: str = _LOOPBACK) -> Security:
  """Returns credentials with a token and a new certificate."""
  with tempfile.TemporaryDirectory() as folder:
    files = written(pathlib.Path(folder), name)
    return Security(token, *(file.read_bytes() for file in files))
