"""Errors of streams between processes."""


class TransportError(Exception):
  """Base of all errors of streams."""


class Closed(TransportError):
  """The other end has ended the stream, has died or cannot be reached."""


class Corrupt(TransportError):
  """The bytes that arrived were not sent like this, or are no valid message."""


class Refused(TransportError):
  """One end does not know the token, or rejects the other end's hello."""


def describe(error: Exception) -> str:
  """Returns the text of an error, without the number of one of the system."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  return str(error) or type(error).__name__
