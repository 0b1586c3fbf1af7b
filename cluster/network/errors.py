"""Errors of streams between processes."""

# Reasons of a peer that gives none: it closes its stream, or only its socket.
CLOSED, ENDED = 'closed', 'the connection ended'


class TransportError(Exception):
  """Base of all errors of streams."""


class Closed(TransportError):
  """The other end has ended the stream, has died or cannot be reached."""


class Corrupt(TransportError):
  """The bytes that arrived were not sent like this, or are no valid message."""


class InvalidMessage(Corrupt):
  """A message of the schema has contents that cannot be true in this run.

  Only its receiver knows that: it raises this before the message has changed
  anything.  The coordinator evicts the sender, and the run of the others goes
  on; a worker ends with this error.
  """


class Refused(TransportError):
  """One end does not know the token, or rejects the other end's hello."""


def expect(valid: bool, field: str, expected: str, got: object) -> None:
  """Checks a field of a message that a peer has sent.

  Raises:
    InvalidMessage: Unless it is valid; says what was expected.
  """
  if not valid:
    raise InvalidMessage(f'{field}: expected {expected}, got {repr(got)[:100]}')


def describe(error: Exception) -> str:
  """Returns the text of an error, without the number of one of the system."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return str(error) or type(error).__name__
