"""Errors of streams between processes."""


class TransportError(Exception):
  """Base of all errors of streams."""


class Closed(TransportError):
  """The other end has ended the stream, has died or cannot be reached."""


class Corrupt(TransportError):
  """The bytes that arrived were not sent like this, or are no valid message."""


class Refused(TransportError):
  """One end does not know the token, or rejects the other end's hello."""


def ended(peer: str, why: Exception | str) -> TransportError:
  """Returns the error to raise if a stream has ended or could not begin.

  Args:
    peer: Address of the other end.
    why: Reason of the end, or the error of Flight.
  """
  text = str(why)
  if isinstance(why, Exception):
    # Flight wraps gRPC's message in details for its own developers.
    text = text.partition('. gRPC client debug context')[0]
    text = text.rpartition(' with message: ')[2]
  return Closed(f'{peer}: {text}')
