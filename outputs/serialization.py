"""Serialization of states: plain data and arrays, decoded by a schema.

`dump` returns a state's plain data as bytes, and its JAX arrays, each once,
however often the state refers to them; `load` reads them back.  `freeze` and
`thaw` do the same with a flat tree of NumPy arrays and a format number, which
is what checkpoints and messages hold.  The file or the connection has
checksums.

The bytes are msgpack of one typed struct, `_Document`: a list of nodes.  A node
is a container, an instance, or an array.  What it contains are numbers, texts,
and references to nodes before it.  So there are no cycles, nothing is nested
when it is decoded, and what the state refers to twice is one object afterwards.

What can be in a state:

- None, bool, int, float, str, bytes;
- list, tuple, dict, set, frozenset, deque, Counter, named tuples;
- instances of dataclasses whose own body has `is_state = True`, with their
  fields as only attributes;
- NumPy arrays and scalars of the types in `NUMBER_TYPES`;
- JAX arrays, and typed keys of random numbers.

Data names classes, but calls nothing of them: instances are created without
`__new__`, `__init__` and `__post_init__`, and must have all fields of the class
and no other.  Nothing is imported.  Sizes of arrays are compared with their
bytes, and depth and size of the state are bounded.
"""

import collections
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import ml_dtypes
import msgspec
import numpy as np

from configs.checks import require
from outputs import formats

Tree = dict[str, np.ndarray]

# Types of arrays' numbers, by name; in the byte order of all supported hosts.
NUMBER_TYPES: Mapping[str, np.dtype] = {
  dtype.name: dtype
  for dtype in (
    *map(np.dtype, ('bool', 'int8', 'int16', 'int32', 'int64')),
    *map(np.dtype, ('uint8', 'uint16', 'uint32', 'uint64')),
    *map(np.dtype, ('float16', 'float32', 'float64')),
    *map(np.dtype, ('complex64', 'complex128')),
    *(
      np.dtype(kind)
      for kind in vars(ml_dtypes).values()
      if isinstance(kind, type) and issubclass(kind, np.generic)
    ),
  )
}
MAX_DEPTH = 64  # Containers within containers.
# Numbers and containers of a state, counted as often as they are referred to.
MAX_VALUES = 1 << 26
_MAX_INTEGER_BYTES = 1 << 12


def freeze(state: Any) -> Callable[[], Tree]:
  """Captures a state; returns a function that makes its tree in any thread.

  Plain data is copied at once.  Arrays are only referred to: XLA does not reuse
  the memory of an array for which there is a NumPy view.

  Raises:
    ValueError: If the state contains anything but plain data and JAX arrays.
  """
  data, arrays = dump(state)
  return functools.partial(_make_tree, data, jax.device_get(arrays))


def thaw(tree: Mapping[str, np.ndarray]) -> Any:
  """Returns the state of a tree.

  Raises:
    ValueError: If the tree has another format, or is no tree from `freeze`.
  """
  arrays = dict(tree)
  header = arrays.pop('format', np.zeros(0))
  if header.shape != (1,) or header.dtype.kind != 'u' or 'plain' not in arrays:
    raise ValueError(f'Expected the arrays of a state, got {sorted(tree)}.')
  found = int(header[0])
  if found != formats.CHECKPOINT:
    raise ValueError(
      f'format: expected {formats.CHECKPOINT}, got {found}: '
      + formats.explain_mismatch(found, formats.CHECKPOINT)
    )
  data = arrays.pop('plain')
  require(data.dtype == np.uint8, 'plain', 'bytes', data.dtype)
  leaves = {}
  for name, array in arrays.items():
    number, _, dtype = name.removeprefix('array').partition(':')
    # A copy that compiles nothing: workers restore states during a run.
    leaves[number] = jax.device_put(
      _view(array, dtype) if dtype else array, may_alias=False
    )
  numbers = [str(number) for number in range(len(arrays))]
  if leaves.keys() != set(numbers):
    raise ValueError(f'Expected the arrays of a state, got {sorted(tree)}.')
  return load(data.data, [leaves[number] for number in numbers])


def load(
  data: bytes | memoryview, arrays: Sequence[jax.Array | np.ndarray]
) -> Any:
  """Returns the state that `dump` has serialized; arrays are on any device.

  Raises:
    ValueError: If these are not data and arrays from `dump`, or name a class
      that this process does not have.
  """
  try:
    document = _DECODER.decode(data)
  except msgspec.DecodeError as error:
    raise ValueError(f'Expected a serialized state: {error}') from error
  return _Reader(document.types, arrays).read(document)


def dump(state: Any) -> tuple[bytes, list[jax.Array]]:
  """Returns a state's plain data as bytes, and its JAX arrays, each once.

  Raises:
    ValueError: If the state contains anything but plain data and arrays; says
      where.
  """
  writer = _Writer()
  try:
    root = writer.write(state)
  except _Unfit as error:
    place = ''.join(reversed(error.path)).removeprefix('.')
    raise ValueError(f'{place or "state"}: {error}') from error
  types = [(_name(kind), names) for kind, names in writer.types.items()]
  document = _Document(types, writer.nodes, root)
  try:
    return _ENCODER.encode(document), writer.arrays
  except UnicodeEncodeError as error:  # Halves of surrogate pairs.
    raise ValueError(f'state: expected text of Unicode: {error}') from error


def check(name: str, value: Any) -> None:
  """Checks that a value can be serialized and read again.

  Raises:
    ValueError: If the value is not plain data and non-empty arrays; has `name`.
  """
  try:
    data, arrays = dump(value)
    load(data, arrays)
  except ValueError as error:
    raise ValueError(
      f'{name}: expected plain data that a checkpoint can hold: {error}'
    ) from error
  if not all(array.size for array in arrays):
    raise ValueError(f'{name}: expected arrays that are not empty.')


def number_type(name: str) -> np.dtype:
  """Returns the type of an array's numbers.

  Raises:
    ValueError: If it is not one of `NUMBER_TYPES`.
  """
  if name not in NUMBER_TYPES:
    raise ValueError(f'dtype: expected a type of numbers, got {name!r}.')
  return NUMBER_TYPES[name]


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


def _view(array: np.ndarray, name: str) -> np.ndarray:
  """Returns an array of bytes or words as one of another type of their size."""
  dtype = number_type(name)
  require(array.dtype.itemsize == dtype.itemsize, name, 'its size', array.dtype)
  return array.view(dtype)


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
# Number of a node: an index into the nodes before.
_Reference = tuple[_Number]
_Value = None | bool | int | float | str | _Reference


class _Node(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
  """Node of a document; its tag is the first element of its msgpack array."""


class _List(_Node, tag=0):
  items: list[_Value]


class _Tuple(_Node, tag=1):
  items: list[_Value]


class _Dict(_Node, tag=2):
  keys: list[_Value]
  items: list[_Value]


class _Instance(_Node, tag=3):
  """Instance of a dataclass: values of its fields."""

  kind: _Number  # Index into the document's types.
  items: list[_Value]


class _Array(_Node, tag=4):
  dtype: str
  shape: Annotated[list[_Number], msgspec.Meta(max_length=32)]
  is_fortran: bool  # Whether the first axis is contiguous.
  data: bytearray


class _Scalar(_Node, tag=5):
  """Scalar of NumPy."""

  dtype: str
  data: bytes


class _Device(_Node, tag=6):
  """JAX array: a number of those that are set aside."""

  number: _Number


class _Key(_Node, tag=7):
  """Typed keys of JAX: their implementation, and the array of their data."""

  impl: str
  number: _Number


class _Integer(_Node, tag=8):
  """Integer of more than 64 bits, little-endian."""

  data: Annotated[bytes, msgspec.Meta(max_length=_MAX_INTEGER_BYTES)]


class _Set(_Node, tag=9):
  items: list[_Value]


class _FrozenSet(_Node, tag=10):
  items: list[_Value]


class _Deque(_Node, tag=11):
  limit: _Number | None
  items: list[_Value]


class _Counter(_Node, tag=12):
  keys: list[_Value]
  items: list[_Value]


class _Bytes(_Node, tag=13):
  data: bytes


class _Named(_Node, tag=14):
  """Named tuple."""

  kind: _Number  # Index into the document's types.
  items: list[_Value]


class _Document(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
  """A state.

  Attributes:
    types: Name and fields of each class.
    nodes: Nodes; each refers only to nodes before it.
    root: The state.
  """

  types: list[tuple[str, list[str]]]
  nodes: list[
    _List
    | _Tuple
    | _Dict
    | _Instance
    | _Array
    | _Scalar
    | _Device
    | _Key
    | _Integer
    | _Set
    | _FrozenSet
    | _Deque
    | _Counter
    | _Bytes
    | _Named
  ]
  root: _Value


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Document)
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # Integers of msgpack.
_PLAIN = frozenset({type(None), bool, float, str})
_SETS = frozenset({_Set, _FrozenSet})
# What may be in keys, if all that it contains may be.
_HASHABLE = frozenset({_Tuple, _FrozenSet, _Scalar, _Integer, _Bytes, _Named})


class _Unfit(Exception):
  """A value that cannot be serialized.

  Attributes:
    path: Its place in the state, last part first.
  """

  def __init__(self, reason: str):
    super().__init__(reason)
    self.path: list[str] = []


class _Sizes:
  """Depths and sizes of nodes, within their bounds.

  A size counts what a node contains as often as it refers to it: functions that
  walk through the state meet it that often.
  """

  def __init__(self) -> None:
    self._depths: list[int] = []
    self._sizes: list[int] = []

  def add(self, count: int, children: Iterable[int]) -> None:
    """Adds a node of `count` values, of which `children` are nodes.

    Raises:
      ValueError: If the state is too deep or too large.
    """
    depth, size = 1, 1 + count
    for child in children:
      depth = max(depth, self._depths[child] + 1)
      size += self._sizes[child]
    if depth > MAX_DEPTH:
      raise ValueError(
        f'Expected at most {MAX_DEPTH} containers in each other.'
      )
    if size > MAX_VALUES:
      raise ValueError(f'Expected at most {MAX_VALUES} values, got {size}.')
    self._depths.append(depth)
    self._sizes.append(size)


class _Writer:
  """Makes the nodes of a state.

  Attributes:
    nodes: Nodes up to now.
    types: Fields of each class of an instance, in the order of their numbers.
    arrays: JAX arrays, each once.
  """

  def __init__(self) -> None:
    self.nodes: list[Any] = []
    self.types: dict[type, list[str]] = {}
    self.arrays: list[jax.Array] = []
    self._type_numbers: dict[type, int] = {}
    # Nodes by `id` of their value; None while it is being written.
    self._written: dict[int, _Reference | None] = {}
    self._sizes = _Sizes()

  def write(self, value: Any, depth: int = 0) -> _Value:
    """Returns what stands for a value in the node that contains it.

    Raises:
      _Unfit: If it is anything but plain data and arrays.
    """
    kind = type(value)
    if kind in _PLAIN:
      return value  # type: ignore[no-any-return]
    if kind is int and _LEAST <= value <= _MOST:
      return value  # type: ignore[no-any-return]
    key = id(value)
    if key in self._written:
      found = self._written[key]
      if found is None:
        raise _Unfit('expected a state that does not contain itself.')
      return found
    if depth > MAX_DEPTH:
      raise _Unfit(f'expected at most {MAX_DEPTH} containers in each other.')
    self._written[key] = None
    node, values = self._node(kind, value, depth + 1)
    children = [item[0] for item in values if type(item) is tuple]
    try:
      self._sizes.add(len(values), children)
    except ValueError as error:
      raise _Unfit(str(error)) from error
    self.nodes.append(node)
    reference = self._written[key] = (len(self.nodes) - 1,)
    return reference

  def _node(
    self, kind: type, value: Any, depth: int
  ) -> tuple[_Node, Sequence[_Value]]:
    """Returns the node of a value, and all that it contains."""
    make = _SEQUENCES.get(kind)
    if make is not None:
      items = self._items(value, depth)
      return make(items), items
    if kind is dict or kind is collections.Counter:
      keys = self._items(value.keys(), depth)
      items = self._fields(value, depth, '[{!r}]')
      pair = _Dict if kind is dict else _Counter
      return pair(keys, items), keys + items
    if kind is collections.deque:
      items = self._items(value, depth)
      return _Deque(value.maxlen, items), items
    if kind is bytes:
      return _Bytes(value), ()
    if kind is int:
      return _Integer(_integer_bytes(value)), ()
    if isinstance(value, jax.Array):
      return self._device_array(value), ()
    if kind is np.ndarray:
      return _array(value), ()
    if isinstance(value, np.generic):
      dtype = _checked(value.dtype)
      return _Scalar(dtype.name, np.asarray(value).tobytes()), ()
    number, fields = self._type(kind)
    if issubclass(kind, tuple):
      attributes = dict(zip(fields, value, strict=True))
      items = self._fields(attributes, depth, '.{}')
      return _Named(number, items), items
    items = self._fields(_attributes(value, fields), depth, '.{}')
    return _Instance(number, items), items

  def _items(self, values: Collection[Any], depth: int) -> list[_Value]:
    kinds = set(map(type, values))
    if kinds <= _PLAIN:
      return list(values)
    if kinds == {int} and min(values) >= _LEAST and max(values) <= _MOST:
      return list(values)
    return [self.write(value, depth) for value in values]

  def _fields(
    self, values: Mapping[Any, Any], depth: int, place: str
  ) -> list[_Value]:
    """Returns what stands for values by name; `place` formats a name's path."""
    items = []
    for name, value in values.items():
      try:
        items.append(self.write(value, depth))
      except _Unfit as error:
        error.path.append(place.format(name))
        raise
    return items

  def _device_array(self, value: jax.Array) -> _Node:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
      impl = str(jax.random.key_impl(value))
      self.arrays.append(jax.random.key_data(value))
      return _Key(impl, len(self.arrays) - 1)
    self.arrays.append(value)
    return _Device(len(self.arrays) - 1)

  def _type(self, kind: type) -> tuple[int, list[str]]:
    """Returns number and fields of a class."""
    if kind not in self.types:
      fields = _fields_of(kind)
      if fields is None or _find_type(_name(kind)) is not kind:
        raise _Unfit(
          f'expected plain data and arrays, got a {_name(kind)}, which is '
          'neither a named tuple nor a dataclass that says is_state = True.'
        )
      self._type_numbers[kind] = len(self.types)
      self.types[kind] = fields
    return self._type_numbers[kind], self.types[kind]


class _Reader:
  """Creates the state of a document.

  Raises:
    ValueError: If there is no such class of states, or its fields differ.
  """

  def __init__(
    self,
    types: Iterable[tuple[str, list[str]]],
    arrays: Sequence[jax.Array | np.ndarray],
  ):
    self._types = [_matching_type(name, fields) for name, fields in types]
    self._arrays = arrays
    self._values: list[Any] = []
    self._hashable: set[int] = set()  # Nodes that may be in keys and sets.
    self._sizes = _Sizes()

  def read(self, document: _Document) -> Any:
    """Returns the state.

    Raises:
      ValueError: If a node is not valid.
    """
    node: Any
    for number, node in enumerate(document.nodes):
      kind = type(node)
      items = getattr(node, 'items', [])
      children = self._references(items)
      if kind is _Dict or kind is _Counter:
        value: Any = self._mapping(node, children)
      else:
        self._sizes.add(len(items), children)
        if kind in _SETS:
          self._check_keys(children)
        value = self._create(node, self._resolve(items, children))
      if kind in _HASHABLE and self._hashable.issuperset(children):
        self._hashable.add(number)
      self._values.append(value)
    root = [document.root]
    return self._resolve(root, self._references(root))[0]

  def _references(self, values: Sequence[_Value]) -> list[int]:
    """Returns the numbers of the nodes to which values refer."""
    found = [value[0] for value in values if type(value) is tuple]
    if found and max(found) >= len(self._values):
      count = len(self._values)
      raise ValueError(f'Expected one of {count} nodes, got {max(found)}.')
    return found

  def _resolve(self, values: list[_Value], nodes: Sequence[int]) -> list[Any]:
    """Returns values, with nodes' values in place of references to them."""
    if not nodes:
      return values
    found = self._values
    return [found[v[0]] if type(v) is tuple else v for v in values]

  def _check_keys(self, nodes: Sequence[int]) -> None:
    if not self._hashable.issuperset(nodes):
      raise ValueError('Expected keys of numbers, texts and tuples.')

  def _mapping(
    self, node: _Dict | _Counter, children: Sequence[int]
  ) -> dict[Any, Any]:
    key_nodes = self._references(node.keys)
    self._check_keys(key_nodes)
    count = len(node.keys)
    if len(node.items) != count:
      raise ValueError(f'Expected {count} values, got {len(node.items)}.')
    self._sizes.add(2 * count, [*key_nodes, *children])
    keys = self._resolve(node.keys, key_nodes)
    items = self._resolve(node.items, children)
    found = dict(zip(keys, items, strict=True))
    if len(found) != count:
      raise ValueError('Expected keys that differ.')
    return found if isinstance(node, _Dict) else collections.Counter(found)

  def _create(self, node: Any, items: list[Any]) -> Any:
    """Returns the value of a node, but a mapping, that contains `items`."""
    match node:
      case _Instance() | _Named():
        return self._instance(node, items)
      case _Array():
        return _read_array(node)
      case _Device():
        return self._set_aside(node.number)
      case _Key():
        return self._keys(node)
      case _Scalar():
        dtype = number_type(node.dtype)
        size = dtype.itemsize
        require(len(node.data) == size, 'scalar', f'{size} bytes', node.data)
        return np.frombuffer(node.data, dtype)[0]
      case _Integer():
        return int.from_bytes(node.data, 'little', signed=True)
      case _Bytes():
        return node.data
      case _Deque():
        return collections.deque(items, node.limit)
    return _KINDS[type(node)](items)

  def _instance(self, node: _Instance | _Named, items: list[Any]) -> Any:
    if node.kind >= len(self._types):
      raise ValueError(f'Expected a type, got {node.kind}.')
    kind = self._types[node.kind]
    if issubclass(kind, tuple) is not isinstance(node, _Named):
      raise ValueError(f'Expected another node of {_name(kind)}.')
    fields = _fields_of(kind) or []
    if len(items) != len(fields):
      raise ValueError(
        f'Expected {len(fields)} fields of {_name(kind)}, got {len(items)}.'
      )
    if issubclass(kind, tuple):
      return tuple.__new__(kind, items)
    instance = object.__new__(kind)
    for name, item in zip(fields, items, strict=True):
      object.__setattr__(instance, name, item)  # It may be frozen.
    return instance

  def _set_aside(self, number: int) -> jax.Array | np.ndarray:
    if number >= len(self._arrays):
      count = len(self._arrays)
      raise ValueError(f'Expected one of {count} arrays, got {number}.')
    return self._arrays[number]

  def _keys(self, node: _Key) -> Any:
    data: Any = self._set_aside(node.number)
    try:
      return jax.random.wrap_key_data(data, impl=node.impl)
    except TypeError as error:
      raise ValueError(f'Expected keys of {node.impl}: {error}') from error


_SEQUENCES: Mapping[type, Callable[[list[_Value]], _Node]] = {
  list: _List,
  tuple: _Tuple,
  set: _Set,
  frozenset: _FrozenSet,
}
_KINDS: Mapping[Any, Callable[[list[Any]], Any]] = {
  node: kind for kind, node in _SEQUENCES.items()
}


def _array(array: np.ndarray) -> _Array:
  dtype = _checked(array.dtype)
  is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
  numbers = np.ascontiguousarray(array.T if is_fortran else array)
  # Copied as it is encoded.
  data: Any = numbers.reshape(-1).view(np.uint8).data
  return _Array(dtype.name, list(array.shape), is_fortran, data)


def _read_array(node: _Array) -> np.ndarray:
  dtype = number_type(node.dtype)
  expected = math.prod(node.shape) * dtype.itemsize
  if len(node.data) != expected:
    raise ValueError(
      f'Expected {expected} bytes of {dtype}{node.shape}, got {len(node.data)}.'
    )
  if dtype == np.bool_ and node.data.strip(b'\0\1'):
    raise ValueError('Expected bytes of 0 and 1 for bool.')
  order: Literal['C', 'F'] = 'F' if node.is_fortran else 'C'
  return np.ndarray(tuple(node.shape), dtype, node.data, order=order)


def _checked(dtype: np.dtype) -> np.dtype:
  if NUMBER_TYPES.get(dtype.name) != dtype:
    raise _Unfit(f'expected an array of numbers, got one of {dtype!r}.')
  return dtype


def _integer_bytes(value: int) -> bytes:
  size = value.bit_length() // 8 + 1
  if size > _MAX_INTEGER_BYTES:
    raise _Unfit(f'expected at most {_MAX_INTEGER_BYTES} bytes, got {size}.')
  return value.to_bytes(size, 'little', signed=True)


def _attributes(value: Any, fields: Sequence[str]) -> Mapping[str, Any]:
  """Returns an instance's attributes by name, in the order of its fields."""
  others = set(getattr(value, '__dict__', ())) - set(fields)
  if others:
    raise _Unfit(f'expected the fields of a dataclass, got {sorted(others)}.')
  try:
    return {name: getattr(value, name) for name in fields}
  except AttributeError as error:
    raise _Unfit(f'expected a value of each field: {error}') from error


def _name(kind: type) -> str:
  return f'{kind.__module__}.{kind.__qualname__}'


@functools.cache
def _fields_of(kind: type) -> list[str] | None:
  """Returns the names of a class's fields; None if it is no class of states."""
  own: Mapping[str, Any] = vars(kind)
  if issubclass(kind, tuple):
    names = own.get('_fields')
    is_named = isinstance(names, tuple) and kind.__bases__ == (tuple,)
    return list(names) if is_named and names is not None else None
  is_own = own.get('is_state') is True and '__dataclass_fields__' in own
  if not is_own or not dataclasses.is_dataclass(kind):
    return None
  return [field.name for field in dataclasses.fields(kind)]


def _find_type(name: str) -> type | None:
  """Returns a class of states by name; None if no such one is loaded."""
  module, _, last = name.rpartition('.')
  found = getattr(sys.modules.get(module), '__dict__', {}).get(last)
  if not isinstance(found, type) or _name(found) != name:
    return None
  return None if _fields_of(found) is None else found


def _matching_type(name: str, fields: list[str]) -> type:
  kind = _find_type(name)
  if kind is None:
    raise ValueError(
      f'Expected plain data, got {name}, which is neither a named tuple nor a '
      'dataclass that says is_state = True.'
    )
  if _fields_of(kind) != fields:
    raise ValueError(
      f'{name}: expected the fields {_fields_of(kind)}, got {fields}.'
    )
  return kind
