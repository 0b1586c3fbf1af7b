"""Tests for outputs.plain: what crafted pickles cannot do."""

import collections
import dataclasses
import os
import pickle
import struct
import sys
import typing

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from cluster.network.streams import Listener, Security
from cluster.speed.speed import Speed
from outputs import plain
from sync import scheme

_RAN = []


class _Named(typing.NamedTuple):
  one: int
  two: object


@dataclasses.dataclass
class _State:
  is_state = True

  value: object

  def __post_init__(self):
    _RAN.append('post_init')


class _Heir(_State):
  """Does not say itself that it is plain data."""


@dataclasses.dataclass
class _Unsaid:
  value: int


class _Setting:
  is_state = True

  def __setstate__(self, state):
    _RAN.append('setstate')


class ReadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    _RAN.clear()

  def test_plain_data_comes_back(self):
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
    data, arrays = plain.write([values, array, array])
    _RAN.clear()
    read, one, other = plain.read(data, arrays)
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
    self.assertEmpty(_RAN)

  @parameterized.parameters(
    (_Heir(1),),
    (_Unsaid(1),),
    (_Setting(),),
    (Speed,),
    (Listener,),
    (os.system,),
    (plain.read,),
    (pickle.Unpickler,),
    (ValueError('x'),),
    (range(3),),
    (type,),
    (np.array([object()]),),
  )
  def test_other_classes_are_refused(self, value):
    data, arrays = pickle.dumps(value), ()
    _RAN.clear()
    with self.assertRaisesRegex(pickle.UnpicklingError, 'Expected .*got'):
      plain.read(data, arrays)
    self.assertEmpty(_RAN)

  def test_tuples_are_data_whoever_they_are_of(self):
    # Of Optax, for example.
    data, arrays = plain.write(Security(token='x'))
    self.assertEqual(plain.read(data, arrays), Security(token='x'))

  @parameterized.parameters(
    # Calls of what may be named.
    (_State, (1,), pickle.REDUCE),
    (_Named, (1, 2), pickle.REDUCE),
    (scheme.Members, (1, 2, 3), pickle.REDUCE),
    # Arguments of __new__.
    (_State, (1,), pickle.NEWOBJ),
    (_Named, (1,), pickle.NEWOBJ),
    (_Named, (1, 2, 3), pickle.NEWOBJ),
    # Attributes of what may be named.
    (_State, ({'__init__': 1},), pickle.TUPLE1 + pickle.BUILD),
    (_State, (None, {'is_state': False}), pickle.BUILD),
    (_Named, (None, {'_fields': ()}), pickle.BUILD),
    (collections.Counter, (None, {'update': 1}), pickle.BUILD),
    (collections.OrderedDict, (None, {'x': 1}), pickle.BUILD),
    (np.dtype, (None, {'x': 1}), pickle.BUILD),
    # Large arrays of which nothing is there.
    (np.ndarray, ((2**50,),), pickle.REDUCE),
    (np.dtype, ('V2000000000',), pickle.REDUCE),
    (np.dtype, ('O',), pickle.REDUCE),
  )
  def test_pickles_that_nobody_writes(self, named, arguments, how):
    body = pickle.dumps(arguments, 2)[2:-1]
    name = f'c{named.__module__}\n{named.__name__}\n'.encode()
    before = dict(vars(collections.Counter)), dict(vars(_State))
    with self.assertRaises((pickle.UnpicklingError, TypeError, AttributeError)):
      plain.read(b'\x80\x02' + name + body + how + b'.', ())
    self.assertEqual(
      before, (dict(vars(collections.Counter)), dict(vars(_State)))
    )
    self.assertEmpty(_RAN)

  @parameterized.parameters(1, -1, 2**40, '0', None, True)
  def test_arrays_that_there_are_not(self, number):
    data = pickle.dumps(number, 2)[:-1] + pickle.BINPERSID + b'.'
    with self.assertRaisesRegex(pickle.UnpicklingError, 'Expected an array'):
      plain.read(data, [jnp.zeros(1)])

  def test_modules_are_not_imported(self):
    name = 'antigravity'
    with self.assertRaisesRegex(pickle.UnpicklingError, name):
      plain.read(f'c{name}\nfly\n.'.encode(), ())
    self.assertNotIn(name, sys.modules)
    with self.assertRaises(pickle.UnpicklingError):
      plain.read(b'\x80\x04\x8c\x02os\x8c\x0bpath.exists\x93.', ())

  def test_sizes_that_are_not_there(self):
    for code in (b'B', b'X', b'T'):
      with self.assertRaises((pickle.UnpicklingError, ValueError)):
        plain.read(code + struct.pack('<I', 2**31 - 1) + b'abc.', ())
    for code in (b'\x8e', b'\x8d', b'\x96', b'\x95'):
      with self.assertRaises((pickle.UnpicklingError, MemoryError)):
        plain.read(b'\x80\x05' + code + struct.pack('<Q', 2**62) + b'abc.', ())


if __name__ == '__main__':
  absltest.main()
