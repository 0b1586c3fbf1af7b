"""Random messages whose contents are arbitrary within their schema."""

import re

import msgspec
from msgspec import inspect

from cluster.network import messages

# Values at which a receiver may go wrong.
_COUNTS = (0, 1, 2, 3, 7, 64, 1000, 2**16 - 1, 2**31, 2**52)
_NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e-9, 1e9, 1e300, -1e300)
_ADDRESSES = ('127.0.0.1:1', '10.1.2.3:65535', '[::1]:7', '[fe80::1%eth0]:80')


def kinds():
  """Returns all classes of messages, and of the structs in them."""
  found = [
    each
    for each in vars(messages).values()
    if isinstance(each, type)
    and issubclass(each, msgspec.Struct)
    and each.__struct_fields__
  ]
  return sorted(found, key=lambda each: each.__name__)


def make(rng, kind, text=None):
  """Returns a random message of a class, as its receiver decodes it."""
  plain = draw(rng, kind, text or _text)
  return msgspec.msgpack.decode(messages.encode(plain), type=kind)


def draw(rng, kind, text=None):
  """Returns plain data that the schema of a class accepts.

  Args:
    rng: Generator of random numbers.
    kind: Class of a message, or another type of msgspec.
    text: Returns a text, given the generator and its most characters.
  """
  return _draw(rng, inspect.type_info(kind), text or _text)


def _draw(rng, kind, text):
  match kind:
    case inspect.UnionType():
      return _draw(rng, rng.choice(kind.types), text)
    case inspect.StructType():
      plain = {
        each.encode_name: _draw(rng, each.type, text) for each in kind.fields
      }
      return plain if kind.tag is None else plain | {kind.tag_field: kind.tag}
    case inspect.NoneType():
      return None
    case inspect.BoolType():
      return rng.random() < 0.5
    case inspect.LiteralType():
      return rng.choice(kind.values)
    case inspect.IntType():
      return _integer(rng, kind)
    case inspect.FloatType():
      return _number(rng, kind)
    case inspect.StrType(pattern=None):
      return text(rng, kind.max_length)
    case inspect.StrType():
      return _pattern(rng, kind.pattern)
    case inspect.BytesType():
      return rng.randbytes(rng.choice((0, 1, 8)))
    case inspect.RawType():
      return {'nodes': []}
    case inspect.TupleType():
      return [_draw(rng, each, text) for each in kind.item_types]
    case inspect.ListType() | inspect.VarTupleType():
      count = rng.choice((0, 1, 1, 2, 3, 5))
      least, most = kind.min_length or 0, kind.max_length or 5
      count = min(max(count, least), most)
      return [_draw(rng, kind.item_type, text) for _ in range(count)]
    case inspect.DictType():
      return {
        _draw(rng, kind.key_type, text): _draw(rng, kind.value_type, text)
        for _ in range(rng.choice((0, 1, 2, 3)))
      }
  raise TypeError(f'No random values of {kind}')


def _integer(rng, kind):
  low = kind.ge if kind.ge is not None else kind.gt + 1
  high = kind.lt - 1 if kind.lt is not None else kind.le
  near = [each for each in _COUNTS if low <= each <= high]
  return rng.choice([low, high, rng.randint(low, high), *2 * near])


def _number(rng, kind):
  low = kind.ge if kind.ge is not None else kind.gt / 2
  near = [each for each in _NUMBERS if low <= each < kind.lt]
  return rng.choice([low, kind.lt / 2, rng.random(), *2 * near])


def _pattern(rng, pattern):
  if re.search(pattern, '0' * 32):
    return f'{rng.getrandbits(128):032x}'
  return rng.choice(_ADDRESSES)


def _text(rng, most):
  words = (
    '',
    'a',
    'accuracy',
    'server0',
    'coordinator',
    'ü',
    'a\nb',
    'x' * most,
  )
  return rng.choice(words)
