"""What goes wrong with streams."""


class TransportError(Exception):
  """Something is wrong with a stream."""


class Closed(TransportError):
  """The other end ended the stream, died or cannot be reached."""


class Corrupt(TransportError):
  """What arrived is not what was sent."""


class Refused(TransportError):
  """One end does not know the token, or what it has said is not accepted."""


def ended(peer: str, why: Exception | str) -> TransportError:
  """Returns what to raise when a stream has ended, or could not begin."""
  text = str(why)
  if isinstance(why, Exception):
    # Flight wraps what gRPC says in what nobody needs.
    text = text.partition('. gRPC client debug context')[0]
    text = text.rpartition(' with message: ')[2]
  return Closed(f'{peer}: {text}')
