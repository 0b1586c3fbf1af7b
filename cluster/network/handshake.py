"""Handshake by which both ends of a connection prove that they know the token.

Neither end sends the token.  Each sends a random number that was never used
before, and an HMAC (RFC 2104) whose key is the token; in three passes after the
request, as in ISO/IEC 9798-4.  The HMAC covers both numbers, the role of its
sender, the service that the client asks for, the address that it has connected
to, and, with TLS, the listener's certificate.  A recorded handshake is
therefore of no use at another time, for another service, or to another
listener.

The client proves itself first: whoever connects without the token gets nothing
that depends on it, by which it could check guesses.

All fields have fixed sizes: a peer that does not know the token can make the
other end read no more than 72 bytes and 32 bytes of a proof.

  client    version [8], service [32], nonce [32]
  listener  nonce [32]
  client    proof [32]
  listener  proof [32], verdict [1]
  client    the first bytes of the service

A listener sends zeros in place of its proof to a client whose proof is wrong.

The handshake authenticates the peers.  It does not protect what they send
afterwards from a third party: TLS does, which is set up before it.
"""

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import ssl
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from cluster.network import sockets
from cluster.network.connection import (
  Connection,
  Steps,
  connected,
  receive_exactly,
  run_steps,
  send_all,
)
from cluster.network.errors import Closed, Refused, TransportError, describe
from configs.checks import require
from system import clock

NONCE_BYTES = PROOF_BYTES = 32
SERVICE_BYTES = 32
LISTENER, CLIENT = b'listener', b'client'
_NAME, _VERSION = b'syncope', b'4'
_MAGIC = _NAME + _VERSION
_ADMITTED, _NO_SERVICE = b'\1', b'\2'
RETRIES, RETRY_S = 10, 0.05  # Of connections that a listener drops.
# Sent in place of a proof to a client that does not know the token.
_REFUSAL = bytes(PROOF_BYTES)


class Dropped(Closed):
  """A listener has ended a connection before it was authenticated."""


class Security(NamedTuple):
  """Credentials of one end of a connection.

  Attributes:
    token: Secret, the same at both ends, that neither sends; '' for none.
    certificate: PEM of the listener's certificate, which must name the address
      that clients connect to; b'' for no encryption.
    key: PEM of the certificate's key; listeners only.
    tls_name: Name in the certificate in place of the address; '' for the
      address.  Clients only.
  """

  token: str = ''
  certificate: bytes = b''
  key: bytes = b''
  tls_name: str = ''

  def __repr__(self) -> str:
    """Names the credentials, without their values, for logs."""
    parts = [field for field in self._fields if getattr(self, field)]
    return f'Security({", ".join(parts)})'


class Transcript(NamedTuple):
  """Parts of a handshake that both ends know, which their proofs cover.

  Attributes:
    service: Service that the client asks for, 32 bytes.
    client: The client's random number, 32 bytes.
    listener: The listener's random number, 32 bytes.
    certificate: SHA-256 of the DER form of the listener's certificate, 32
      bytes; zeros without TLS.
    address: Numeric address that the client has connected to.
  """

  service: bytes
  client: bytes
  listener: bytes
  certificate: bytes
  address: str


def client_context(security: Security) -> ssl.SSLContext | None:
  """Returns the TLS context of clients; None without a certificate.

  Raises:
    ssl.SSLError: If the certificate is invalid.
  """
  if not security.certificate:
    return None
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.minimum_version = ssl.TLSVersion.TLSv1_3
  context.load_verify_locations(cadata=security.certificate.decode())
  return context


def listener_context(security: Security) -> ssl.SSLContext | None:
  """Returns the TLS context of listeners; None without a certificate.

  Raises:
    ssl.SSLError: If the certificate is invalid, or does not match the key.
  """
  if not security.certificate:
    return None
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.minimum_version = ssl.TLSVersion.TLSv1_3
  # The ssl module reads certificate chains from files only.
  with _in_memory(security.certificate) as chain, _in_memory(security.key) as k:
    context.load_cert_chain(chain, k)
  return context


def certificate_digest(security: Security) -> bytes:
  """Returns the digest of a listener's own certificate: see `Transcript`."""
  if not security.certificate:
    return bytes(hashlib.sha256().digest_size)
  # A file may hold a chain, of which the first is the listener's own.
  start, end = ssl.PEM_HEADER, ssl.PEM_FOOTER
  body = security.certificate.decode().partition(start)[2].partition(end)[0]
  der = ssl.PEM_cert_to_DER_cert(f'{start}{body}{end}')
  return hashlib.sha256(der).digest()


def name_service(name: str) -> bytes:
  """Returns the name of a service as the handshake sends it, 32 bytes.

  Raises:
    ValueError: If the name is empty or too long.
  """
  encoded = name.encode()
  expected = f'a name of 1 to {SERVICE_BYTES} bytes'
  require(0 < len(encoded) <= SERVICE_BYTES, 'service', expected, name)
  return encoded.ljust(SERVICE_BYTES)


def answer(
  connection: Connection,
  security: Security,
  context: ssl.SSLContext | None,
  address: str,
  certificate: bytes,
  services: Collection[bytes],
  on_request: Callable[[], None],
) -> Steps[bytes]:
  """Authenticates a client, as the listener; returns its service.

  Args:
    connection: New connection.
    security: Credentials of the listener.
    context: TLS context; None without TLS.
    address: Numeric address of the listener.
    certificate: Digest of the listener's certificate.
    services: Services that it offers; may change meanwhile.
    on_request: Called once the client's first field is there, or its first
      record of TLS.

  Raises:
    TransportError: If the client does not know the token, or disconnects.
    OSError: If the connection is broken.
  """
  if context:
    yield from connection.wait_for_tls()
  else:
    yield from connection.wait_for_bytes(len(_MAGIC))
  on_request()
  connection.configure()
  if context:
    yield from connection.encrypt(context, server_side=True)
  magic = yield from receive_exactly(connection, len(_MAGIC))
  if magic != _MAGIC:
    is_other = magic.startswith(_NAME)
    raise Refused('it is another version' if is_other else 'no handshake')
  request = yield from receive_exactly(connection, SERVICE_BYTES + NONCE_BYTES)
  service = request[:SERVICE_BYTES]
  transcript = Transcript(
    service,
    request[SERVICE_BYTES:],
    secrets.token_bytes(NONCE_BYTES),
    certificate,
    address,
  )
  yield from send_all(connection, transcript.listener)
  code = yield from receive_exactly(connection, PROOF_BYTES)
  expected = prove(security.token, CLIENT, transcript)
  if not hmac.compare_digest(code, expected):
    yield from send_all(connection, _REFUSAL)
    raise Refused('its token is not ours')
  code = prove(security.token, LISTENER, transcript)
  if service not in services:
    yield from send_all(connection, code + _NO_SERVICE)
    raise Refused(f'there is no service {_printable(service)} here')
  yield from send_all(connection, code + _ADMITTED)
  return service


def initiate(
  connection: Connection,
  security: Security,
  context: ssl.SSLContext | None,
  name: str,
  service: bytes,
  first: bytes = b'',
) -> Steps[None]:
  """Authenticates a listener, as the client; waits until it admits us.

  Args:
    connection: Connection to the listener that has begun, whose `peer` is its
      numeric address.
    security: Credentials of the client.
    context: TLS context; None without TLS.
    name: Host of the listener, which its certificate must name unless
      `security` has another name.
    service: Service to ask for.
    first: First bytes to the service, which are sent once it has admitted us.

  Raises:
    Refused: If the listener does not know the token.
    Dropped: If it ends the connection.
    Closed: If it does not offer the service.
    OSError: If there is no connection, or TLS fails.
  """
  yield from connected(connection)
  connection.configure()
  try:
    verdict = yield from _initiate(
      connection, security, context, name, service, first
    )
  # The last is the end of a connection during the handshake of TLS.
  except (ConnectionError, Closed, ssl.SSLEOFError) as error:
    raise Dropped(describe(error)) from error
  if verdict != _ADMITTED:
    raise Closed(f'the listener has no service {_printable(service)}')


def _initiate(
  connection: Connection,
  security: Security,
  context: ssl.SSLContext | None,
  name: str,
  service: bytes,
  first: bytes,
) -> Steps[bytes]:
  """Returns the listener's verdict: see `initiate`."""
  certificate = certificate_digest(Security())
  if context:
    server = security.tls_name or name
    yield from connection.encrypt(context, server_hostname=server)
    certificate = connection.certificate_digest()
  nonce = secrets.token_bytes(NONCE_BYTES)
  yield from send_all(connection, _MAGIC + service + nonce)
  challenge = yield from receive_exactly(connection, NONCE_BYTES)
  transcript = Transcript(
    service, nonce, challenge, certificate, connection.peer
  )
  code = prove(security.token, CLIENT, transcript)
  yield from send_all(connection, code)
  code = yield from receive_exactly(connection, PROOF_BYTES)
  expected = prove(security.token, LISTENER, transcript)
  if not hmac.compare_digest(code, expected):
    raise Refused('the token is not that of the listener')
  verdict = yield from receive_exactly(connection, len(_ADMITTED))
  if verdict == _ADMITTED:
    yield from send_all(connection, first)
  return verdict


def open_connection(
  address: str,
  security: Security,
  service: str,
  first: bytes = b'',
  *,
  timeout_s: float,
) -> Connection:
  """Returns an authenticated connection, for threads that may wait for it.

  A connection that the listener drops is opened again some times, as it drops
  random ones while it is flooded.

  Args:
    address: 'host:port' of the listener.
    security: Credentials of the client.
    service: Service to ask for.
    first: First bytes to the service.
    timeout_s: Limit, seconds.

  Raises:
    ValueError: If the name of the service is empty or too long.
    Refused: If the listener does not know the token.
    Closed: If there is no connection in time; says why.
  """
  deadline = clock.monotonic() + timeout_s
  requested = name_service(service)
  name, _ = sockets.split(address)
  there, retries = address, 0
  others: list[str] = []
  while True:
    connection = None
    try:
      # As a number, by which the listener knows itself.
      there, *others = others or sockets.resolve(address)
      connection = Connection(sockets.start_connecting(there), there)
      steps = initiate(
        connection,
        security,
        _cached_context(security.certificate),
        name,
        requested,
        first,
      )
      run_steps(connection, steps, deadline)
      return connection
    except (TransportError, OSError) as error:
      if connection:
        connection.close()
      if isinstance(error, Refused):
        raise Refused(f'{there}: {error}') from error
      # It may listen on another one, unless this one has answered.
      if others and isinstance(error, ConnectionRefusedError):
        continue
      is_over = clock.monotonic() + RETRY_S >= deadline or retries == RETRIES
      if is_over or not isinstance(error, Dropped):
        raise Closed(f'{there}: {describe(error)}') from error
    retries += 1
    clock.sleep(RETRY_S)


@functools.lru_cache(maxsize=4)
def _cached_context(certificate: bytes) -> ssl.SSLContext | None:
  return client_context(Security(certificate=certificate))


def prove(token: str, role: bytes, transcript: Transcript) -> bytes:
  """Returns the code that proves knowledge of the token, 32 bytes.

  All parts of the message but the last have fixed sizes.

  Args:
    token: The key.
    role: LISTENER or CLIENT, the end that proves itself.
    transcript: Parts of the handshake.
  """
  # Without a secret, connections through tunnels are allowed.
  address = sockets.without_zone(transcript.address) if token else ''
  message = b''.join(
    (
      _MAGIC,
      role.ljust(len(LISTENER)),
      transcript.service,
      transcript.client,
      transcript.listener,
      transcript.certificate,
      address.encode(),
    )
  )
  return hmac.digest(token.encode(), message, 'sha256')


def _printable(service: bytes) -> str:
  text = service.decode('ascii', 'replace').strip()
  return ''.join(c if c.isprintable() else '?' for c in text)


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
  """Yields the path of a file that no other process can open."""
  number = os.memfd_create('pem', os.MFD_CLOEXEC)
  try:
    os.write(number, content)
    yield f'/proc/self/fd/{number}'
  finally:
    os.close(number)
