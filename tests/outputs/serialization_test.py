"""Tests of serialized states: round trips, and crafted pickles."""

import collections
import dataclasses
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import typing

import jax.numpy as jnp
import numpy as np
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

  def __post_init__(self):
    _CALLS.append('post_init')


class _Subclass(_State):
  """A subclass whose own body has no is_state."""


@dataclasses.dataclass
class _NoState:
  value: int


class _WithSetState:
  is_state = True

  def __setstate__(self, state):
    _CALLS.append('setstate')


class ReadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    _CALLS.clear()

  def test_plain_data_survives_a_round_trip(self):
    array = jnp.arange(3.0)
    shared = _State([1, 2])
    values = {
      'numbers': [1, -(2**70), 0.5, True, None, 'text', b'bytes'],
      'containers': (
        {1, 2},
        frozenset({3}),
        collections.Counter('aab'),
        collections.OrderedDict(b=1, a=2),
        collections.deque([1, 2], maxlen=3),
        bytearray(b'x'),
      ),
      'numpy': [
        np.float32(1.5),
        np.int64(-1),
        np.arange(6).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.array(['ab', 'c']),
        np.zeros((0, 3)),
        np.dtype('>f4'),
        np.arange(6)[::2],
      ],
      'tuples': _Named(1, _Named(2, ())),
      'twice': [shared, shared],
      'members': scheme.make_members(3),
    }
    data, arrays = serialization.dump([values, array, array])
    _CALLS.clear()
    read, one, other = serialization.load(data, arrays)
    np.testing.assert_equal(
      {k: v for k, v in read.items() if k not in ('twice', 'members')},
      {k: v for k, v in values.items() if k not in ('twice', 'members')},
    )
    self.assertEqual(read['members'], values['members'])
    self.assertIs(read['twice'][0], read['twice'][1])
    self.assertEqual(vars(read['twice'][0]), {'value': [1, 2]})
    self.assertIsInstance(read['twice'][0], _State)
    self.assertIsInstance(read['tuples'], _Named)
    self.assertIs(one, other)
    self.assertLen(arrays, 1)
    self.assertEmpty(_CALLS)

  @parameterized.parameters(
    (_Subclass(1),),
    (_NoState(1),),
    (_WithSetState(),),
    (Speed,),
    (LoopListener,),
    (os.system,),
    (serialization.load,),
    (pickle.Unpickler,),
    (ValueError('x'),),
    (range(3),),
    (type,),
    (np.array([object()]),),
  )
  def test_instances_of_other_classes_are_rejected(self, value):
    data, arrays = pickle.dumps(value), ()
    _CALLS.clear()
    with self.assertRaisesRegex(pickle.UnpicklingError, 'Expected .*got'):
      serialization.load(data, arrays)
    self.assertEmpty(_CALLS)

  def test_named_tuples_of_any_package_are_plain_data(self):
    # Such as those of Optax.
    data, arrays = serialization.dump(Security(token='x'))
    self.assertEqual(serialization.load(data, arrays), Security(token='x'))

  @parameterized.parameters(
    # Calls of permitted names.
    (_State, (1,), pickle.REDUCE),
    (_Named, (1, 2), pickle.REDUCE),
    (scheme.Members, (1, 2, 3), pickle.REDUCE),
    # Arguments of __new__.
    (_State, (1,), pickle.NEWOBJ),
    (_Named, (1,), pickle.NEWOBJ),
    (_Named, (1, 2, 3), pickle.NEWOBJ),
    # Attributes of permitted names.
    (_State, ({'__init__': 1},), pickle.TUPLE1 + pickle.BUILD),
    (_State, (None, {'is_state': False}), pickle.BUILD),
    (_Named, (None, {'_fields': ()}), pickle.BUILD),
    (collections.Counter, (None, {'update': 1}), pickle.BUILD),
    (collections.OrderedDict, (None, {'x': 1}), pickle.BUILD),
    (np.dtype, (None, {'x': 1}), pickle.BUILD),
    # Large arrays without content.
    (np.ndarray, ((2**50,),), pickle.REDUCE),
    (np.dtype, ('V2000000000',), pickle.REDUCE),
    (np.dtype, ('O',), pickle.REDUCE),
  )
  def test_crafted_pickles_call_and_change_nothing(self, named, arguments, how):
    body = pickle.dumps(arguments, 2)[2:-1]
    name = f'c{named.__module__}\n{named.__name__}\n'.encode()
    before = dict(vars(collections.Counter)), dict(vars(_State))
    with self.assertRaises((pickle.UnpicklingError, TypeError, AttributeError)):
      serialization.load(b'\x80\x02' + name + body + how + b'.', ())
    self.assertEqual(
      before, (dict(vars(collections.Counter)), dict(vars(_State)))
    )
    self.assertEmpty(_CALLS)

  @parameterized.parameters(1, -1, 2**40, '0', None, True)
  def test_references_to_missing_arrays_are_rejected(self, number):
    data = pickle.dumps(number, 2)[:-1] + pickle.BINPERSID + b'.'
    with self.assertRaisesRegex(pickle.UnpicklingError, 'Expected an array'):
      serialization.load(data, [jnp.zeros(1)])

  def test_reading_imports_no_module(self):
    name = 'antigravity'
    with self.assertRaisesRegex(pickle.UnpicklingError, name):
      serialization.load(f'c{name}\nfly\n.'.encode(), ())
    self.assertNotIn(name, sys.modules)
    with self.assertRaises(pickle.UnpicklingError):
      serialization.load(b'\x80\x04\x8c\x02os\x8c\x0bpath.exists\x93.', ())

  def test_sizes_beyond_the_end_are_rejected(self):
    for code in (b'B', b'X', b'T'):
      with self.assertRaises((pickle.UnpicklingError, ValueError)):
        serialization.load(code + struct.pack('<I', 2**31 - 1) + b'abc.', ())
    for code in (b'\x8e', b'\x8d', b'\x96', b'\x95'):
      with self.assertRaises((pickle.UnpicklingError, MemoryError)):
        serialization.load(
          b'\x80\x05' + code + struct.pack('<Q', 2**62) + b'abc.', ()
        )


class _Evil:
  def __reduce__(self):
    return os.mkdir, ('evil',)


class FreezeTest(parameterized.TestCase):
  def test_an_array_that_is_referred_to_twice_is_stored_once(self):
    array = jnp.arange(5.0)
    tree = serialization.freeze({'a': [array, array], 'b': (array, None)})()
    self.assertEqual(sorted(tree), ['array0', 'format', 'plain'])
    state = serialization.thaw(tree)
    self.assertIs(state['a'][0], state['b'][0])
    np.testing.assert_array_equal(state['a'][1], np.arange(5.0))

  @parameterized.parameters('bfloat16', 'float16', 'float8_e4m3fn', 'uint32')
  def test_types_of_arrays_survive_a_file(self, dtype):
    array = jnp.arange(6.0).astype(dtype).reshape(2, 3)
    folder = pathlib.Path(tempfile.mkdtemp(), 'arrays')
    arrays.write(folder, serialization.freeze([array, jnp.ones(())])())
    found, one = serialization.thaw(arrays.read(folder))
    self.assertEqual((found.dtype, found.shape), (array.dtype, (2, 3)))
    np.testing.assert_array_equal(found, array)
    self.assertEqual(one, 1)

  @parameterized.parameters(
    (_Evil(),), (os.mkdir,), (subprocess.Popen,), ([{'a': os.system}],)
  )
  def test_reading_runs_no_code(self, value):
    tree = serialization.freeze(value)()
    with self.assertRaisesRegex(pickle.UnpicklingError, 'Expected plain data'):
      serialization.thaw(tree)

  def test_other_formats_are_rejected_by_name(
    self,
  ):
    tree = serialization.freeze(1)()
    tree['format'][0] = formats.CHECKPOINT - 1
    with self.assertRaisesRegex(
      ValueError, 'format: expected 12, got 11: the last commit .* is 32b50bd'
    ):
      serialization.thaw(tree)
    tree['format'][0] = formats.CHECKPOINT + 1
    with self.assertRaisesRegex(ValueError, 'written by a later version'):
      serialization.thaw(tree)


if __name__ == '__main__':
  absltest.main()
