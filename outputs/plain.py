"""What a checkpoint may hold, and how it is read without running any code.

A pickle names functions and classes, calls them, and sets attributes of what
comes out.  Here nothing that it names is called or changed: there is a list of
functions of ours for numbers and containers, and instead of each class there is
a stand-in, of which an instance of the class comes, made without `__new__`,
`__init__` or `__setstate__` of that class, and filled from a dictionary.

There is a stand-in for named tuples, whoever's they are, and for classes that
say in their own body, by `is_state = True`, that they are plain data which
checkpoints hold; not for those that inherit from such.
"""

import collections
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


def read(data: bytes, arrays: Sequence[jax.Array]) -> Any:
  """Returns what was pickled.

  Args:
    data: From `write`.
    arrays: Those that were set aside.

  Raises:
    pickle.UnpicklingError: If there is anything but plain data in it.
    Exception: Of pickle, if it is no pickle at all.
  """
  return _Unpickler(io.BytesIO(data), arrays).load()


def write(value: Any) -> tuple[bytes, list[jax.Array]]:
  """Returns a value as bytes, and its arrays of JAX, each once.

  Raises:
    Exception: Of pickle, if it cannot.
  """
  file = io.BytesIO()
  pickler = _Pickler(file)
  pickler.dump(value)
  return file.getvalue(), pickler.arrays


class _Pickler(pickle.Pickler):
  """Sets arrays of JAX aside, each once."""

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
  def __init__(self, file: io.BytesIO, arrays: Sequence[jax.Array]):
    super().__init__(file)
    self._arrays = arrays
    self._stand_ins: dict[type, type] = {}

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
  """Of stand-ins: instances are made as a pickle makes them, not by calls."""

  def __call__(cls, *arguments: Any, **fields: Any) -> Any:
    raise pickle.UnpicklingError(f'Expected plain data, got {cls}().')

  def __setattr__(cls, name: str, value: Any) -> None:
    raise pickle.UnpicklingError(f'Expected plain data, got {cls}.{name}.')


def _stand_in(found: type | None, name: str) -> type:
  """Returns what gives instances of a class.

  Raises:
    pickle.UnpicklingError: If it is no class of plain data.
  """
  if found is not None and issubclass(found, tuple):
    fields = vars(found).get('_fields')
    if isinstance(fields, tuple) and found.__bases__ == (tuple,):
      return _NotCalled(name, (), {'__new__': _tuple_of(found, len(fields))})
  says = found is not None and vars(found).get('is_state') is True
  if says and not hasattr(found, '__setstate__'):
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
  """Returns a type of numbers, of its own: a pickle may change it."""
  dtype = np.dtype(str(text), copy=True)
  if dtype.hasobject or dtype.itemsize > _MOST_ITEM_BYTES:
    raise pickle.UnpicklingError(f'Expected a type of numbers, got {text!r}.')
  return dtype


def _blank(cls: Any, shape: tuple[int, ...], kind: bytes) -> np.ndarray:
  """Returns an array to be filled, as NumPy wants it."""
  if cls is not _ARRAY or shape != (0,):
    raise pickle.UnpicklingError(f'Expected an empty array, got {shape}.')
  return np.ndarray(shape, kind)


def _scalar(dtype: np.dtype, data: bytes) -> Any:
  return np.frombuffer(data, dtype, 1)[0]


def _from_buffer(
  data: Any, dtype: np.dtype, shape: tuple[int, ...], order: str
) -> np.ndarray:
  return np.frombuffer(data, dtype).reshape(shape, order=order)


_MOST_ITEM_BYTES = 1 << 12
_ARRAY = object()  # Is named beside `_reconstruct`, and never called.
# Calls of classes, not the classes: a pickle could change what these are.
_CONSTRUCTED: dict[tuple[str, str], Any] = {
  (kind.__module__, kind.__name__): type.__call__.__get__(kind)
  for kind in (
    *(set, collections.Counter, collections.OrderedDict),
    *(collections.defaultdict, collections.deque),
  )
} | {
  ('numpy', 'ndarray'): _ARRAY,
  ('numpy', 'dtype'): _dtype.__call__,
  ('numpy._core.multiarray', '_reconstruct'): _blank.__call__,
  ('numpy._core.multiarray', 'scalar'): _scalar.__call__,
  ('numpy._core.numeric', '_frombuffer'): _from_buffer.__call__,
}
