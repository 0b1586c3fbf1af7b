"""Tests of serialized states: round trips, crafted and mutated states."""

import collections
import dataclasses
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import tracemalloc
import typing

import jax
import jax.numpy as jnp
import ml_dtypes
import msgspec
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized

from cluster.network.loop_streams import LoopListener
from cluster.network.streams import Security
from cluster.speed.speed import Speed
from outputs import arrays, formats, serialization
from sync import scheme

_CALLS = []


class _Named(typing.NamedTuple):
  one: int
  two: object


@dataclasses.dataclass
class _State:
  is_state = True

  value: object

  def __new__(cls, *arguments):
    _CALLS.append('new')
    return super().__new__(cls)

  def __post_init__(self):
    _CALLS.append('post_init')

  def __setstate__(self, state):
    _CALLS.append('setstate')

  def __setattr__(self, name, value):
    _CALLS.append('setattr')
    object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Frozen:
  is_state = True

  value: object


class _Subclass(_State):
  """A subclass whose own body has no is_state."""


@dataclasses.dataclass
class _NoState:
  value: int


class _NoDataclass:
  is_state = True


class _Masked(np.ndarray):
  pass


class _Evil:
  def __reduce__(self):
    return os.mkdir, ('evil',)


def _round_trip(value):
  data, found = serialization.dump(value)
  _CALLS.clear()
  return serialization.load(data, found)


def _document(nodes, *, root=None, types=()):
  """Returns the bytes of a document, whatever is in it."""
  root = [len(nodes) - 1] if root is None else root
  return msgspec.msgpack.encode([types, nodes, root])


class ReadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    _CALLS.clear()

  def test_plain_data_survives_a_round_trip(self):
    array = jnp.arange(3.0)
    shared = _State([1, 2])
    values = {
      'numbers': [1, -(2**70), 2**64 - 1, -(2**63), 0.5, -0.0, True, None],
      'texts': ['text', '', 'ä', b'bytes', b''],
      'integers': [1, 2, 2**70],
      'containers': (
        {1, 2},
        frozenset({3, (4, frozenset())}),
        collections.Counter('aab'),
        collections.deque([1, [2]], maxlen=3),
        collections.deque(),
      ),
      'keys': {
        1: 'a',
        (1, 'b'): 2,
        None: 3,
        b'c': 4,
        _Named(1, 2): 5,
        2**80: 6,
      },
      'numpy': [
        np.float32(1.5),
        np.int64(-1),
        np.arange(6).reshape(2, 3),
        np.zeros((0, 3)),
        np.array(3.0),
        np.arange(6)[::2],
        np.arange(3) > 1,
        np.array([1, 2], ml_dtypes.bfloat16),
      ],
      'tuples': _Named(1, _Named(2, ())),
      'frozen': _Frozen({'a': 1}),
      'twice': [shared, shared],
      'members': scheme.make_members(3),
    }
    read, one, other = _round_trip([values, array, array])
    others = ('twice', 'members', 'frozen')
    np.testing.assert_equal(
      {k: v for k, v in read.items() if k not in others},
      {k: v for k, v in values.items() if k not in others},
    )
    for found, expected in zip(read['numpy'], values['numpy'], strict=True):
      self.assertIs(type(found), type(expected))
      self.assertEqual(found.dtype, expected.dtype)
    self.assertEqual(list(read['keys']), list(values['keys']))
    self.assertIsInstance(list(read['keys'])[4], _Named)
    self.assertEqual(read['containers'][3].maxlen, 3)
    self.assertIsInstance(read['containers'][2], collections.Counter)
    self.assertEqual(read['members'], values['members'])
    self.assertEqual(read['frozen'], values['frozen'])
    self.assertIs(read['twice'][0], read['twice'][1])
    self.assertEqual(vars(read['twice'][0]), {'value': [1, 2]})
    self.assertIsInstance(read['twice'][0], _State)
    self.assertIsInstance(read['tuples'], _Named)
    self.assertIs(one, other)
    self.assertEmpty(_CALLS)

  def test_what_is_referred_to_twice_is_one_object(self):
    inner, array = [1], np.zeros(2)
    read = _round_trip({'a': inner, 'b': [inner, array], 'c': array})
    self.assertIs(read['a'], read['b'][0])
    self.assertIs(read['c'], read['b'][1])

  def test_the_order_of_axes_in_memory_survives(self):
    array = np.arange(6.0).reshape(2, 3).T
    read = _round_trip(array)
    self.assertEqual(read.strides, array.strides)
    np.testing.assert_array_equal(read, array)
    read[0] = 7  # It can be written to.

  @parameterized.parameters(*serialization.NUMBER_TYPES)
  def test_arrays_of_numbers_survive_bit_for_bit(self, name):
    dtype = serialization.NUMBER_TYPES[name]
    data = np.random.default_rng(1).integers(0, 2, 24 * dtype.itemsize)
    array = data.astype(np.uint8).view(dtype)
    if dtype.kind == 'f':  # Not-a-numbers have bits, too.
      array[0] = np.nan
    read, scalar = _round_trip([array, array[1]])
    self.assertEqual(read.dtype, dtype)
    self.assertEqual(read.tobytes(), array.tobytes())
    self.assertEqual(scalar.tobytes(), array[1].tobytes())
    self.assertIs(type(scalar), type(array[1]))

  def test_states_of_optax_survive_bit_for_bit(self):
    params = {'w': jnp.ones((2, 3), jnp.bfloat16), 'b': jnp.zeros(3)}
    tx = optax.chain(
      optax.clip(1.0),
      optax.masked(optax.adam(1e-3), {'w': True, 'b': False}),
      optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9),
    )
    state = tx.init(params)
    _, state = tx.update(params, state, params)
    read = _round_trip(state)
    self.assertEqual(jax.tree.structure(read), jax.tree.structure(state))
    for one, other in zip(
      jax.tree.leaves(read), jax.tree.leaves(state), strict=True
    ):
      self.assertEqual(one.dtype, other.dtype)
      np.testing.assert_array_equal(one, other)

  def test_states_of_random_numbers_survive(self):
    generator = np.random.default_rng(7)
    generator.random(5)
    other = np.random.default_rng(0)
    other.bit_generator.state = _round_trip(generator.bit_generator.state)
    self.assertEqual(other.random(), generator.random())
    key = jax.random.key(3, impl='rbg')
    keys = jax.random.split(jax.random.key(4), 2)
    one, two, again = _round_trip([key, keys, keys])
    self.assertEqual(one.dtype, key.dtype)
    self.assertEqual(two.dtype, keys.dtype)
    self.assertIs(two, again)
    np.testing.assert_array_equal(
      jax.random.key_data(two), jax.random.key_data(keys)
    )
    self.assertEqual(jax.random.bits(one), jax.random.bits(key))

  @parameterized.parameters(
    (_Subclass(1), 'Subclass'),
    (_NoState(1), 'NoState'),
    (_NoDataclass(), 'NoDataclass'),
    (_Evil(), 'Evil'),
    (Speed, 'got a'),
    (LoopListener, 'got a'),
    (os.system, 'builtin_function'),
    (subprocess.Popen, 'got a'),
    (ValueError('x'), 'ValueError'),
    (range(3), 'range'),
    (np.array([object()]), "dtype.'O'"),
    (np.array(['ab']), 'U2'),
    (np.zeros(2, '>f4'), '>f4'),
    (np.zeros(2).view(_Masked), 'Masked'),
    (np.datetime64('2026-01-01'), 'M8'),
    ('\ud800', 'Unicode'),
    (collections.OrderedDict(), 'OrderedDict'),
  )
  def test_anything_else_is_refused(self, value, name):
    _CALLS.clear()
    with self.assertRaisesRegex(ValueError, f'(?s)expected .*{name}'):
      serialization.dump({'a': [value]})
    with self.assertRaisesRegex(ValueError, 'scheme: expected plain data'):
      serialization.check('scheme', [value])
    self.assertEmpty(_CALLS)

  def test_integers_of_many_bytes_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'at most 4096 bytes'):
      serialization.dump(1 << 40000)

  def test_a_refusal_names_the_place(self):
    value = {'scheme': _State([{'x': _Named(1, _State(os.system))}])}
    with self.assertRaisesRegex(
      ValueError, r"^\['scheme'\]\.value\['x'\]\.two\.value: expected"
    ):
      serialization.dump(value)

  def test_attributes_that_are_no_fields_are_refused(self):
    state = _State(1)
    state.cache = 2
    with self.assertRaisesRegex(ValueError, "got .'cache'"):
      serialization.dump(state)
    del state.cache, state.value
    with self.assertRaisesRegex(ValueError, 'value of each field'):
      serialization.dump(state)

  def test_states_that_contain_themselves_are_refused(self):
    value = [1]
    value.append({'a': value})
    with self.assertRaisesRegex(ValueError, 'does not contain itself'):
      serialization.dump(value)

  def test_depth_and_size_are_bounded(self):
    value = 1
    for _ in range(serialization.MAX_DEPTH):
      value = [value]
    _round_trip(value)
    with self.assertRaisesRegex(ValueError, 'at most 64 containers'):
      serialization.dump([value])
    nodes = [[0, [1]]] + [[0, [[k]]] for k in range(serialization.MAX_DEPTH)]
    with self.assertRaisesRegex(ValueError, 'at most 64 containers'):
      serialization.load(_document(nodes), ())
    wide = [1, 2]  # 2^40 numbers, for who walks through it.
    for _ in range(40):
      wide = [wide, wide]
    with self.assertRaisesRegex(ValueError, 'at most .* values'):
      serialization.dump(wide)
    nodes = [[0, [1, 2]]] + [[0, [[k], [k]]] for k in range(40)]
    with self.assertRaisesRegex(ValueError, 'at most .* values'):
      serialization.load(_document(nodes), ())

  def test_named_tuples_of_any_package_are_plain_data(self):
    # Such as those of Optax.
    value = Security(token='x')
    self.assertEqual(_round_trip(value), value)

  @parameterized.parameters(
    # No document.
    (b'', 'truncated'),
    (b'\x80\x05.', 'serialized'),  # A pickle.
    (msgspec.msgpack.encode({}), 'array'),
    # Arrays: other kinds of numbers, shapes, sizes.
    ([[4, 'object', [1], False, b'12345678']], 'numbers'),
    ([[4, 'V8', [1], False, b'12345678']], 'numbers'),
    ([[4, '(65536,)f8', [1], False, b'12345678']], 'numbers'),
    ([[4, 'float64', [2], False, b'12345678']], 'bytes of float64'),
    ([[4, 'float64', [1 << 40, 1 << 40], False, b'12345678']], 'bytes of'),
    ([[4, 'float64', [-1], False, b'12345678']], '>= 0'),
    ([[4, 'float64', [1] * 33, False, b'12345678']], 'length <= 32'),
    ([[4, 'float64', [0, 1 << 48, 1 << 48], False, b'']], ''),
    ([[4, 'bool', [2], False, b'\0\2']], '0 and 1'),
    ([[5, 'float64', b'1234']], '8 bytes'),
    ([[5, 'object', b'12345678']], 'numbers'),
    # References.
    ([[0, [[0]]]], '0 nodes'),
    ([[0, [[1]]]], '0 nodes'),
    ([[0, [[-1]]]], '>= 0'),
    ([[0, [[0, 0]]]], 'length 1'),
    ([[0, [['x']]]], 'int'),
    ([[6, 1]], '1 arrays'),
    ([[6, -1]], '>= 0'),
    ([[7, 'threefry2x32', 0]], ''),
    ([[7, 'evil', 0]], ''),
    # Containers.
    ([[2, ['a'], []]], '1 values'),
    ([[2, ['a', 'a'], [1, 2]]], 'differ'),
    ([[0, []], [2, [[0]], [1]]], 'keys'),
    ([[0, []], [1, [[0]]], [9, [[1]]]], 'keys'),
    ([[11, -1, []]], '>= 0'),
    ([[3, 0, []]], 'a type, got 0'),
    ([[99, []]], '99'),
    ([[8, b'1' * 5000]], 'length <= 4096'),
  )
  def test_crafted_documents_are_refused(self, nodes, message):
    data = nodes if isinstance(nodes, bytes) else _document(nodes)
    with self.assertRaisesRegex(ValueError, message):
      serialization.load(data, [jnp.zeros(1)])

  @parameterized.parameters(
    ('os.system', []),
    ('os.path.exists', []),
    ('builtins.list', []),
    ('builtins.type', []),
    ('subprocess.Popen', ['args']),
    ('antigravity.fly', []),
    ('', []),
    (f'{__name__}._NoState', ['value']),
    (f'{__name__}._Subclass', ['value']),
    (f'{__name__}._State', ['other']),
    (f'{__name__}._State', ['value', '__class__']),
    (f'{__name__}._Named', ['one']),
    (f'{__name__}._State.value', []),
  )
  def test_other_classes_and_fields_are_refused(self, name, fields):
    data = _document([[3, 0, [1] * len(fields)]], types=[[name, fields]])
    with self.assertRaisesRegex(ValueError, 'neither|fields'):
      serialization.load(data, ())
    self.assertNotIn('antigravity', sys.modules)
    self.assertEmpty(_CALLS)

  @parameterized.parameters((3, 14, '_Named', 2), (14, 3, '_State', 1))
  def test_instances_have_all_fields_of_their_class(self, no, yes, name, size):
    kind = f'{__name__}.{name}'
    names = ['one', 'two'] if size == 2 else ['value']
    types = [[kind, names]]
    with self.assertRaisesRegex(ValueError, 'another node'):
      serialization.load(_document([[no, 0, [1] * size]], types=types), ())
    with self.assertRaisesRegex(ValueError, f'{size} fields'):
      serialization.load(_document([[yes, 0, [1] * 3]], types=types), ())

  @parameterized.parameters(b'\xdd', b'\xc6', b'\xdf', b'\xdb', b'\xc9')
  def test_sizes_beyond_the_end_take_no_memory(self, code):
    for start in (b'', b'\x93', b'\x93\x90', b'\x93\x90\x91\x92\x00'):
      tracemalloc.start()
      try:
        with self.assertRaises(ValueError):
          serialization.load(start + code + b'\x7f\xff\xff\xff' + b'abc', ())
        self.assertLess(tracemalloc.get_traced_memory()[1], 1 << 20)
      finally:
        tracemalloc.stop()


def _rich_state():
  """Returns a state with a node of every kind."""
  shared = _State([1, 2])
  return {
    'a': [1, -1, 0.5, True, None, 'text', b'bytes', 2**70],
    'b': (
      {1, 'x'},
      frozenset({(1, 2)}),
      collections.Counter('aab'),
      collections.deque([1, shared], maxlen=9),
    ),
    'c': [np.arange(6.0).reshape(2, 3).T, np.float32(1), np.zeros(3, bool)],
    'd': [shared, _Named(1, shared), _Frozen(2), scheme.make_members(2)],
    'e': [jnp.ones(3), jax.random.key(1)],
    (1, 'f'): {},
  }


def _mutated(data: bytes, chance: random.Random) -> bytes:
  """Returns a state with one to four changes of random kinds."""
  found = bytearray(data)
  for _ in range(chance.randint(1, 4)):
    at = chance.randrange(len(found) + 1)
    match chance.randrange(6):
      case 0 if at < len(found):  # A bit.
        found[at] ^= 1 << chance.randrange(8)
      case 1:  # The rest is missing.
        del found[at:]
      case 2:  # Bytes are missing.
        del found[at : at + chance.randint(1, 8)]
      case 3:  # A part of it takes another place.
        start = chance.randrange(len(found) + 1)
        found[at:at] = found[start : start + chance.randint(1, 40)]
      case 4:  # A header with an absurd length.
        code = chance.choice(b'\xc4\xc5\xc6\xc9\xd9\xda\xdb\xdc\xdd\xde\xdf')
        found[at : at + 5] = bytes([code]) + chance.randbytes(4)
      case _:  # Any bytes.
        size = chance.randint(1, 4)
        found[at : at + size] = chance.randbytes(size)
  return bytes(found)


def _read_mutated(count: int, seed: int) -> collections.Counter:
  """Reads mutated states; returns how many were read and refused.

  Raises:
    Exception: If one raises anything but ValueError.
    AssertionError: If the most memory of one is above 16 MiB.
  """
  chance = random.Random(seed)
  data, found = serialization.dump(_rich_state())
  numbers = jax.device_get(found)
  outcomes = collections.Counter()
  tracemalloc.start()
  try:
    for _ in range(count):
      mutated = _mutated(data, chance)
      try:
        serialization.load(mutated, numbers)
      except ValueError:
        outcomes['refused'] += 1
      else:
        outcomes['read'] += 1
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  if peak > 16 << 20:
    raise AssertionError(f'{peak} bytes')
  return outcomes


class MutationTest(absltest.TestCase):
  def test_mutated_states_are_read_or_refused(self):
    outcomes = _read_mutated(1000, 1)
    self.assertGreater(outcomes['refused'], 500)
    self.assertGreater(outcomes['read'], 10)

  @pytest.mark.soak
  @pytest.mark.timeout(1800)
  def test_100_000_mutated_states_are_read_or_refused(self):
    outcomes = _read_mutated(100_000, 2)
    self.assertEqual(outcomes.total(), 100_000)


class FreezeTest(parameterized.TestCase):
  def test_an_array_that_is_referred_to_twice_is_stored_once(self):
    array = jnp.arange(5.0)
    tree = serialization.freeze({'a': [array, array], 'b': (array, None)})()
    self.assertEqual(sorted(tree), ['array0', 'format', 'plain'])
    state = serialization.thaw(tree)
    self.assertIs(state['a'][0], state['b'][0])
    np.testing.assert_array_equal(state['a'][1], np.arange(5.0))

  @parameterized.parameters(
    'bfloat16', 'float16', 'float8_e4m3fn', 'uint32', 'uint4'
  )
  def test_types_of_arrays_survive_a_file(self, dtype):
    array = jnp.arange(6.0).astype(dtype).reshape(2, 3)
    folder = pathlib.Path(tempfile.mkdtemp(), 'arrays')
    arrays.write(folder, serialization.freeze([array, jnp.ones(())])())
    found, one = serialization.thaw(arrays.read(folder))
    self.assertEqual((found.dtype, found.shape), (array.dtype, (2, 3)))
    np.testing.assert_array_equal(found, array)
    self.assertEqual(one, 1)

  def test_typed_keys_survive_a_file(self):
    key = jax.random.key(5)
    folder = pathlib.Path(tempfile.mkdtemp(), 'arrays')
    arrays.write(folder, serialization.freeze(key)())
    found = serialization.thaw(arrays.read(folder))
    self.assertEqual(found.dtype, key.dtype)
    self.assertEqual(jax.random.bits(found), jax.random.bits(key))

  @parameterized.parameters(
    {'array1': np.zeros(1)},  # Without array0.
    {'other': np.zeros(1)},
    {'array0': np.zeros(1), 'array0:uint4': np.zeros(1, 'u1')},
    {'array0:object': np.zeros(1)},
    {'array0:V8': np.zeros(1)},
    {'array0:float8_e4m3fn': np.zeros(1)},  # Of another size.
    {'plain': np.zeros(3)},
    {'plain': np.zeros(3, np.uint8)},
    {'format': np.zeros(2)},
    {'format': np.zeros(1)},
  )
  def test_other_trees_are_refused(self, **changes):
    tree = serialization.freeze([1])() | changes
    with self.assertRaises(ValueError):
      serialization.thaw(tree)

  def test_other_formats_are_rejected_by_name(self):
    tree = serialization.freeze(1)()
    tree['format'][0] = formats.CHECKPOINT - 1
    with self.assertRaisesRegex(
      ValueError, r'format: expected \d+, got \d+: the last commit .* is \w{7}'
    ):
      serialization.thaw(tree)
    tree['format'][0] = formats.CHECKPOINT + 1
    with self.assertRaisesRegex(ValueError, 'written by a later version'):
      serialization.thaw(tree)


if __name__ == '__main__':
  absltest.main()
