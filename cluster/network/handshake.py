"""Handshake by which both ends of a stream prove that they know the token.

Neither end sends the token.  Each sends a random number that was never used
before, and an HMAC (RFC 2104) of both numbers, its role and the address that
the client has connected to, whose key is the token; in three passes, as in
ISO/IEC 9798-4.  A recorded handshake is therefore of no use at another time or
to another listener.  The listener proves itself first: until then a client
reveals no more than that it exists.

The handshake authenticates the peers.  It does not protect what they send
afterwards from a third party: TLS does, which is set up before it.
"""

import hmac
import secrets
from typing import NamedTuple

import msgspec

from cluster.network import messages
from cluster.network.calls import Stream
from cluster.network.errors import Refused

NONCE_BYTES = 32
LISTENER, CLIENT = b'listener', b'client'
_PURPOSE = b'syncopate stream 1'


class Security(NamedTuple):
  """Credentials of one end of a stream.

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
    """Returns the names of the credentials, without their values, for logs."""
    parts = [field for field in self._fields if getattr(self, field)]
    return f'Security({", ".join(parts)})'


def receive_hello(
  stream: Stream, security: Security, address: str
) -> msgspec.Raw:
  """Returns the encoded hello of a client that knows the token.

  Args:
    stream: New stream from the client.
    security: Credentials of the listener.
    address: IPv4 'address:port' of the listener.

  Raises:
    Refused: If the client does not know the token.
    TransportError: If it sends another message, or the stream ends.
  """
  theirs = stream.receive(messages.CLIENT_NONCE, 0).header.nonce
  ours = secrets.token_hex(NONCE_BYTES)
  numbers = theirs, ours, address
  code = proof(security.token, LISTENER, *numbers)
  stream.send(messages.ListenerProof(nonce=ours, proof=code))
  answer = stream.receive(messages.CLIENT_PROOF, 0).header
  expected = proof(security.token, CLIENT, *numbers)
  if not hmac.compare_digest(answer.proof, expected):
    raise Refused('its token is not ours')
  hello: msgspec.Raw = answer.hello.copy()
  return hello


def send_hello(
  stream: Stream, security: Security, address: str, hello: object
) -> None:
  """Sends a hello to a listener that knows the token; waits for its answer.

  Args:
    stream: New stream to the listener.
    security: Credentials of the client.
    address: IPv4 'address:port' that the client has connected to.
    hello: Message for the listener's handler.

  Raises:
    Refused: If the listener does not know the token, or refuses ours.
    TransportError: If it sends another message, or the stream ends.
  """
  ours = secrets.token_hex(NONCE_BYTES)
  stream.send(messages.ClientNonce(nonce=ours))
  answer = stream.receive(messages.LISTENER_PROOF, 0).header
  numbers = ours, answer.nonce, address
  expected = proof(security.token, LISTENER, *numbers)
  if not hmac.compare_digest(answer.proof, expected):
    stream.close('its token is not ours')
    raise Refused(f'{stream.peer}: the token is not that of the listener')
  code = proof(security.token, CLIENT, *numbers)
  encoded = msgspec.Raw(messages.encode(hello))
  stream.send(messages.ClientProof(proof=code, hello=encoded))
  stream.receive(messages.NOTHING, 0)


def proof(
  token: str,
  role: bytes,
  client: str,
  listener: str,
  address: str,
  *,
  purpose: bytes = _PURPOSE,
) -> str:
  """Returns the code that proves knowledge of the token, in hex.

  All parts but the last have fixed lengths.

  Args:
    token: The key.
    role: LISTENER or CLIENT, the end that proves itself.
    client: The client's random number, in hex.
    listener: The listener's random number, in hex.
    address: Address that the client has connected to, and whatever else both
      ends know.
    purpose: Kind of the handshake, so that a code of another kind is invalid.
  """
  if not token:  # Without a secret, connections through tunnels are allowed.
    address = ''
  role = role.ljust(len(LISTENER))
  numbers = bytes.fromhex(client) + bytes.fromhex(listener)
  message = purpose + role + numbers + address.encode()
  return hmac.digest(token.encode(), message, 'sha256').hex()
