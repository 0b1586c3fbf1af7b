"""Serialization of states as arrays, which are read without running any code.

A state is plain data and arrays.  `freeze` pickles the plain data and sets JAX
arrays aside, each once, however often the state refers to it; the result is a
flat tree of NumPy arrays with a format number.  `thaw` returns the state.
Checksums are those of the file or the connection that holds the tree.

A pickle names functions and classes, calls them, and sets attributes of the
results.  Here nothing that a pickle names is called or changed.  Numbers and
containers come from a fixed list of functions.  A class is replaced by a
stand-in, which creates an instance without `__new__`, `__init__` or
`__setstate__` of the class, and fills it from a dictionary.  Stand-ins exist
for named tuples, and for classes whose own body has `is_state = True`; not for
subclasses of these.
"""

import collections
import functools
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from outputs import formats

Tree = dict[str, np.ndarray]


def freeze(state: Any) -> Callable[[], Tree]:
  """Captures a state; returns a function that makes its tree in any thread.

  Plain data is copied at once.  Arrays are only referred to: XLA does not reuse
  the memory of an array for which there is a NumPy view.

  Args:
    state: Plain data and JAX arrays.

  Raises:
    Exception: From pickle, if the state cannot be pickled.
  """
  data, arrays = dump(state)
  return functools.partial(_make_tree, data, jax.device_get(arrays))


def thaw(tree: Mapping[str, np.ndarray]) -> Any:
  """Returns the state of a tree.

  Raises:
    ValueError: If the tree has another format.
    Exception: From pickle, if it holds anything but plain data.
  """
  arrays = dict(tree)
  header = arrays.pop('format', np.zeros(0))
  if header.shape != (1,) or 'plain' not in arrays:
    raise ValueError(f'Expected the arrays of a state, got {sorted(tree)}.')
  found = int(header[0])
  if found != formats.CHECKPOINT:
    raise ValueError(
      f'format: expected {formats.CHECKPOINT}, got {found}: '
      + formats.explain_mismatch(found, formats.CHECKPOINT)
    )
  data = arrays.pop('plain')
  leaves = {}
  for name, array in arrays.items():
    number, _, dtype = name.removeprefix('array').partition(':')
    own = np.array(array.view(dtype) if dtype else array)
    leaves[int(number)] = jax.device_put(own)
  return load(data.tobytes(), [leaves[k] for k in range(len(leaves))])


def load(data: bytes, arrays: Sequence[jax.Array]) -> Any:
  """Returns the state that `dump` has pickled.

  Args:
    data: Pickle from `dump`.
    arrays: Arrays from `dump`.

  Raises:
    pickle.UnpicklingError: If there is anything but plain data in it.
    Exception: From pickle, if it is no pickle at all.
  """
  return _Unpickler(io.BytesIO(data), arrays).load()


def dump(state: Any) -> tuple[bytes, list[jax.Array]]:
  """Returns a pickle of a state's plain data, and its JAX arrays, each once.

  Raises:
    Exception: From pickle, if the state cannot be pickled.
  """
  file = io.BytesIO()
  pickler = _Pickler(file)
  pickler.dump(state)
  return file.getvalue(), pickler.arrays


def check(name: str, value: Any) -> None:
  """Checks that a value can be serialized and read again.

  Args:
    name: Name of the value, for the message.
    value: Value to check.

  Raises:
    ValueError: If the value is not plain data and non-empty arrays.
  """
  try:
    data, arrays = dump(value)
    load(data, arrays)
  # Pickle has many errors for values that it cannot write.
  except (AttributeError, TypeError, pickle.PickleError) as error:
    raise ValueError(
      f'{name}: expected plain data that a checkpoint can hold: {error}'
    ) from error
  if not all(array.size for array in arrays):
    raise ValueError(f'{name}: expected arrays that are not empty.')


def _make_tree(data: bytes, arrays: Sequence[np.ndarray]) -> Tree:
  tree = {}
  for number, array in enumerate(arrays):
    dtype = array.dtype
    if dtype.kind == 'V':  # Such as uint4, which Orbax does not write.
      tree[f'array{number}:{dtype.name}'] = array.view(f'u{dtype.itemsize}')
    else:
      tree[f'array{number}'] = array
  tree['plain'] = np.frombuffer(data, np.uint8)
  tree['format'] = np.array([formats.CHECKPOINT], np.uint32)
  return tree


class _Pickler(pickle.Pickler):
  """Pickler that sets JAX arrays aside, each once."""

  def __init__(self, file: io.BytesIO):
    super().__init__(file, protocol=5)
    self.arrays: list[jax.Array] = []
    self._numbers: dict[int, int] = {}

  def persistent_id(self, value: Any) -> int | None:
    if not isinstance(value, jax.Array):
      return None
    if id(value) not in self._numbers:
      self._numbers[id(value)] = len(self.arrays)
      self.arrays.append(value)
    return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
  """Unpickler that creates plain data alone."""

  def __init__(self, file: io.BytesIO, arrays: Sequence[jax.Array]):
    super().__init__(file)
    self._arrays = arrays
    self._stand_ins: dict[type | None, type] = {}

  def persistent_load(self, number: Any) -> jax.Array:
    if type(number) is not int or not 0 <= number < len(self._arrays):
      raise pickle.UnpicklingError(f'Expected an array, got {number!r}.')
    return self._arrays[number]

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) in _CONSTRUCTED:
      return _CONSTRUCTED[module, name]
    found = vars(sys.modules.get(module, object)).get(name)
    if not isinstance(found, type) or found.__module__ != module:
      found = None
    if found not in self._stand_ins:
      self._stand_ins[found] = _stand_in(found, f'{module}.{name}')
    return self._stand_ins[found]


class _NotCalled(type):
  """Metaclass of stand-ins, which cannot be called or changed."""

  def __call__(cls, *arguments: Any, **fields: Any) -> Any:
    raise pickle.UnpicklingError(f'Expected plain data, got {cls}().')

  def __setattr__(cls, name: str, value: Any) -> None:
    raise pickle.UnpicklingError(f'Expected plain data, got {cls}.{name}.')


def _stand_in(found: type | None, name: str) -> type:
  """Returns a stand-in whose `__new__` creates instances of a class.

  Args:
    found: The class; None if there is none of that name.
    name: Name of the class, for the message.

  Raises:
    pickle.UnpicklingError: If it is not a class of plain data.
  """
  if found is not None and issubclass(found, tuple):
    fields = vars(found).get('_fields')
    if isinstance(fields, tuple) and found.__bases__ == (tuple,):
      return _NotCalled(name, (), {'__new__': _tuple_of(found, len(fields))})
  is_state = found is not None and vars(found).get('is_state') is True
  if found is not None and is_state and not hasattr(found, '__setstate__'):
    return _NotCalled(name, (), {'__new__': _instance_of(found)})
  raise pickle.UnpicklingError(
    f'Expected plain data, got {name}, which is neither a named tuple nor a '
    'class that says is_state = True.'
  )


def _tuple_of(found: type, size: int) -> Callable[..., Any]:
  def new(cls: type, *values: Any) -> Any:
    if len(values) != size:
      raise pickle.UnpicklingError(
        f'Expected {size} fields of {found.__name__}, got {len(values)}.'
      )
    return tuple.__new__(found, values)

  return new


def _instance_of(found: type) -> Callable[..., Any]:
  def new(cls: type) -> Any:
    return object.__new__(found)

  return new


def _dtype(text: str, *_: Any) -> np.dtype:
  """Returns a new number type, as a pickle may change it."""
  dtype = np.dtype(str(text), copy=True)
  if dtype.hasobject or dtype.itemsize > _MOST_ITEM_BYTES:
    raise pickle.UnpicklingError(f'Expected a type of numbers, got {text!r}.')
  return dtype


def _blank(cls: Any, shape: tuple[int, ...], kind: bytes) -> np.ndarray:
  """Returns an empty array that NumPy fills afterwards."""
  if cls is not _ARRAY or shape != (0,):
    raise pickle.UnpicklingError(f'Expected an empty array, got {shape}.')
  return np.ndarray(shape, np.dtype(kind.decode()))


def _scalar(dtype: np.dtype, data: bytes) -> Any:
  return np.frombuffer(data, dtype, 1)[0]


def _from_buffer(
  data: Any, dtype: np.dtype, shape: tuple[int, ...], order: Literal['C', 'F']
) -> np.ndarray:
  flat: np.ndarray = np.frombuffer(data, dtype)
  return flat.reshape(shape, order=order)


def _method(function: Any) -> Any:
  """Returns the bound method that calls a function."""
  return function.__call__


_MOST_ITEM_BYTES = 1 << 12
_ARRAY = object()  # An argument of `_reconstruct`; never called.
# Methods that call classes and functions, which a pickle cannot change.
_CONSTRUCTED: dict[tuple[str, str], Any] = {
  (kind.__module__, kind.__name__): type.__call__.__get__(kind)
  for kind in (
    *(set, collections.Counter, collections.OrderedDict),
    *(collections.defaultdict, collections.deque),
  )
} | {
  ('numpy', 'ndarray'): _ARRAY,
  ('numpy', 'dtype'): _method(_dtype),
  ('numpy._core.multiarray', '_reconstruct'): _method(_blank),
  ('numpy._core.multiarray', 'scalar'): _method(_scalar),
  ('numpy._core.numeric', '_frombuffer'): _method(_from_buffer),
}
