"""How two ends of a stream find out that both know the token.

Neither sends it.  Each sends a number of its own that was never used before,
and shows that it can make a code of both numbers, of its role and of the
address that the client has connected to, of which the token is the key (HMAC,
RFC 2104; in three passes, as ISO/IEC 9798-4 has it).  So what one end has said
can neither be said again to it, nor sent on to another listener or at another
time.  The listener is first: to a stranger a client says no more than that it
is there.

It shows who the other end is, not that nobody between them changes what is said
afterwards: that is what TLS is for, which is there before.
"""

import hmac
import secrets
from typing import Any, NamedTuple

from cluster.network.errors import Refused
from cluster.network.messages import Stream

NONCE_BYTES = 32
LISTENER, CLIENT = b'listener', b'client'
_PURPOSE = b'syncopate stream 1'


class Security(NamedTuple):
  """What both ends need to trust each other.

  Attributes:
    token: Secret, the same at both ends, that neither sends; '' for none.
    certificate: PEM, the listener's, which must name the address that clients
      connect to; b'' for no encryption.
    key: PEM, of the certificate; listeners only.
    tls_name: What the certificate names in the place of the address; '' for
      the address.  Clients only.
  """

  token: str = ''
  certificate: bytes = b''
  key: bytes = b''
  tls_name: str = ''

  def __repr__(self) -> str:
    """Returns what may be in a log: no secret."""
    parts = [field for field in self._fields if getattr(self, field)]
    return f'Security({", ".join(parts)})'


def receive_hello(stream: Stream, security: Security, address: str) -> Any:
  """Returns the hello of a client that knows the token.

  Args:
    stream: New, from the client.
    security: The listener's.
    address: IPv4 'address:port' of the listener.

  Raises:
    Refused: If it does not know the token.
    TransportError: If it says something else, or goes.
  """
  theirs = _field(_said(stream), 'nonce')
  ours = secrets.token_hex(NONCE_BYTES)
  numbers = theirs, ours, address
  code = proof(security.token, LISTENER, *numbers)
  stream.send({'nonce': ours, 'proof': code})
  answer = _said(stream)
  expected = proof(security.token, CLIENT, *numbers)
  if not hmac.compare_digest(_field(answer, 'proof'), expected):
    raise Refused('its token is not ours')
  return answer.get('hello')


def send_hello(
  stream: Stream, security: Security, address: str, hello: Any
) -> None:
  """Says hello to a listener, if it knows the token; waits for its answer.

  Args:
    stream: New, to the listener.
    security: The client's.
    address: IPv4 'address:port' that the client has connected to.
    hello: Plain JSON.

  Raises:
    Refused: If the listener does not know the token, or says that we do not.
    TransportError: If it says something else, or goes.
  """
  ours = secrets.token_hex(NONCE_BYTES)
  stream.send({'nonce': ours})
  answer = _said(stream)
  numbers = ours, _field(answer, 'nonce'), address
  expected = proof(security.token, LISTENER, *numbers)
  if not hmac.compare_digest(_field(answer, 'proof'), expected):
    stream.close('its token is not ours')
    raise Refused(f'{stream.peer}: the token is not that of the listener')
  code = proof(security.token, CLIENT, *numbers)
  stream.send({'proof': code, 'hello': hello})
  stream.receive(most_bytes=0)


def proof(
  token: str,
  role: bytes,
  client: str,
  listener: str,
  address: str,
  *,
  purpose: bytes = _PURPOSE,
) -> str:
  """Returns the code of who knows the token, in hex.

  All parts but the last have fixed lengths.

  Args:
    token: The key.
    role: LISTENER or CLIENT: whose code it is.
    client: The client's number, in hex.
    listener: The listener's number, in hex.
    address: That the client has connected to, and whatever else both know.
    purpose: What the code is for, of a fixed length for each: one that was made
      for something else shows nothing.
  """
  if not token:  # There is nobody to be kept out: tunnels may be used.
    address = ''
  role = role.ljust(len(LISTENER))
  numbers = bytes.fromhex(client) + bytes.fromhex(listener)
  message = purpose + role + numbers + address.encode()
  return hmac.digest(token.encode(), message, 'sha256').hex()


def _said(stream: Stream) -> dict[str, Any]:
  header = stream.receive(most_bytes=0).header
  if not isinstance(header, dict):
    raise Refused('it does not greet')
  return header


def _field(said: dict[str, Any], name: str) -> str:
  """Returns a number of 32 bytes, in hex, of what was said."""
  text = said.get(name)
  valid = isinstance(text, str) and len(text) == 2 * NONCE_BYTES
  if not valid or set(text) - set('0123456789abcdef'):
    raise Refused('it does not greet')
  return text
