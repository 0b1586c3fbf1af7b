"""When the gradients of layers appear while an iteration is computed.

A profile has the leaves of a gradient in the order in which the backward pass
makes them, each with its bytes and the part of the iteration's time after which
it is there.
"""

import bisect
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cluster.speed import rooflines
from configs.checks import require
from configs.sections import error_prefix, read_json

VERSION = 1  # Of what `parse` reads.
_ITEM = np.dtype(np.float32).itemsize
_FORWARD = 1 / 3  # Of the time, before the first gradient can be there.
_ROOFLINE = re.compile(r'roofline\((\w+), *(\d{1,9})\)')
_FIELDS = ('name', 'bytes', 'ready')


class Layer(NamedTuple):
  """A leaf of a gradient.

  Attributes:
    bytes: Of its numbers.
    ready: Part of the iteration's time after which it is there, 0 to 1.
    copy_s: Seconds from then on until the host has it.
  """

  bytes: int
  ready: float
  copy_s: float = 0.0


class Range(NamedTuple):
  """A contiguous part of all that a worker adds.

  Attributes:
    bytes: Of its numbers.
    ready: Part of the iteration's time after which all of it is there.
    copy_s: Seconds from then on until the host has all of it.
  """

  bytes: int
  ready: float
  copy_s: float = 0.0


def in_proportion(sizes: Sequence[int]) -> list[Layer]:
  """Returns layers that take as much of the backward pass as of the bytes.

  The backward pass has the last two thirds of the time: it multiplies twice for
  each product of the forward pass.

  Args:
    sizes: Bytes of each, in the order in which the backward pass makes them.
  """
  total = max(sum(sizes), 1)
  ends = itertools.accumulate(sizes)
  return [
    Layer(size, _FORWARD + (1 - _FORWARD) * end / total)
    for size, end in zip(sizes, ends, strict=True)
  ]


def read(field: str, path: str) -> list[Layer]:
  """Returns the layers of a profile.

  Args:
    field: For the message.
    path: A file; or a call such as 'roofline(alexnet, 128)', of a model and how
      many examples a worker has, for what `rooflines` computes.

  Raises:
    ValueError: If the file cannot be read or holds none, or there is no such
      model; names the field.
  """
  if call := _ROOFLINE.fullmatch(path):
    with error_prefix(field):
      found = rooflines.profile(call[1], int(call[2]))
    return [Layer(*each) for each in found]
  content = read_json(field, 'a profile of layers', path)
  try:
    return parse(content)
  except ValueError as error:
    raise ValueError(f'{field}: {path}: {error}') from error


def parse(content: Any) -> list[Layer]:
  """Returns the layers of a profile, as tools.profile_layers writes it.

  Args:
    content: Of its JSON file, decoded.

  Raises:
    ValueError: If it is no profile, or of another version.
  """
  profile = content if isinstance(content, Mapping) else {}
  rows, version = profile.get('layers'), profile.get('version')
  whole = isinstance(rows, list) and bool(rows) and version == VERSION
  expected = f'layers, of a profile of layers of version {VERSION}'
  require(whole, 'layers', expected, [*profile])
  found = []
  for number, row in enumerate(rows or ()):
    own = isinstance(row, Mapping) and set(row) == set(_FIELDS)
    require(own, f'layers[{number}]', f'the fields {_FIELDS}', row)
    size, ready = row['bytes'], row['ready']
    valid = type(size) is int and size >= 0
    require(valid, f'layers[{number}].bytes', 'an integer, at least 0', size)
    valid = type(ready) in (int, float) and 0 <= ready <= 1
    require(valid, f'layers[{number}].ready', '0 to 1', ready)
    found.append(Layer(size, float(ready)))
  return found


def scaled(layers: Sequence[Layer], size_bytes: int) -> list[Layer]:
  """Returns layers like these of so many bytes together, whole numbers of 4."""
  before = list(
    itertools.accumulate((each.bytes for each in layers), initial=0)
  )
  total = max(before[-1], 1)
  ends = [size_bytes * each // total // 4 * 4 for each in before[:-1]]
  pairs = itertools.pairwise([*ends, size_bytes])
  return [
    Layer(stop - start, each.ready)
    for (start, stop), each in zip(pairs, layers, strict=True)
  ]


def ranges(
  layers: Sequence[Layer], bucket_bytes: float, rest_bytes: int
) -> list[Range]:
  """Returns what travels as one: as many layers as make so many bytes.

  A range is closed as soon as it has at least `bucket_bytes`; 0 closes one for
  each layer.  The last one has what is left open and what is ready at the end:
  statistics, which are known after the gradient.

  Args:
    layers: In the order in which the backward pass makes them.
    bucket_bytes: At least 0; inf for all in one.
    rest_bytes: Of what comes last.
  """
  found, size, ready, copy_s = [], 0, 0.0, 0.0
  for layer in layers:
    size, ready = size + layer.bytes, max(ready, layer.ready)
    copy_s = max(copy_s, layer.copy_s)
    if size and size >= bucket_bytes:
      found.append(Range(size, ready, copy_s))
      size, ready = 0, 0.0
  if size or rest_bytes or not found:
    ready = 1.0 if rest_bytes else ready
    found.append(Range(size + rest_bytes, ready, copy_s))
  return found


def shortened(parts: Sequence[Range], size_bytes: int) -> list[Range]:
  """Returns ranges of so many bytes together, ready at the same times."""
  total = max(sum(each.bytes for each in parts), 1)
  ends = itertools.accumulate(each.bytes for each in parts)
  cuts = [0, *(size_bytes * end // total // _ITEM * _ITEM for end in ends)]
  cuts[-1] = size_bytes
  return [
    each._replace(bytes=end - start)
    for each, (start, end) in zip(parts, itertools.pairwise(cuts), strict=True)
  ]


def spread(parts: Sequence[Range], sizes: Sequence[int]) -> list[Range]:
  """Returns ranges of these sizes that lie evenly in others, end to end.

  Each is ready once what lies before its end is.
  """
  total, sent = sum(each.bytes for each in parts), max(sum(sizes), 1)
  ends = [*itertools.accumulate(each.bytes for each in parts)]
  ready = [*itertools.accumulate((each.ready for each in parts), max)]
  copy_s = [*itertools.accumulate((each.copy_s for each in parts), max)]
  found = []
  for size, end in zip(sizes, itertools.accumulate(sizes), strict=True):
    place = bisect.bisect_left(ends, -(-end * total // sent))
    found.append(Range(size, ready[place], copy_s[place]))
  return found


def even(size_bytes: int, bucket_bytes: float) -> list[int]:
  """Returns the bytes of equal layers, as many as ranges if they are whole."""
  if not 0 < bucket_bytes < size_bytes:
    return [size_bytes]
  count = math.ceil(size_bytes / bucket_bytes)
  ends = [size_bytes * i // count // 4 * 4 for i in range(count)]
  return [b - a for a, b in itertools.pairwise([*ends, size_bytes])]


def of_run(
  config: ConfigDict,
  learned: Any,
  bucket_bytes: float,
  dtype: np.dtype,
  *,
  copy_Bps: float = math.inf,
) -> list[Range]:
  """Returns what a worker adds, in the order in which it is ready.

  Args:
    config: Of the run; may name a profile.
    learned: A `Learning`: what is learned.
    bucket_bytes: As of `ranges`, of float32.
    dtype: What gradients travel as; if that is not float32, what comes last is
      a range by itself.
    copy_Bps: If finite, an accelerator computes gradients: they are ready when
      it has computed all, and are copied to the host at this rate, one after
      the other.

  Raises:
    ValueError: If the profile is of another model; names the field.
  """
  params, stats = (_ITEM * each for each in learned.elements)
  sizes = learned.leaf_bytes
  if path := config.cluster.speed.layers:
    field = 'config.cluster.speed.layers'
    found = read(field, path)
    got = sum(each.bytes for each in found)
    expected = f'a profile of the model, of {params} bytes in all'
    require(not sizes or got == params, field, expected, got)
    found = found if sizes else scaled(found, params)
  else:
    found = in_proportion(sizes or even(params, bucket_bytes))
  if copy_Bps < math.inf:
    ends = itertools.accumulate(each.bytes for each in found)
    found = [
      Layer(each.bytes, 1.0, end / copy_Bps)
      for each, end in zip(found, ends, strict=True)
    ]
  rest = stats + learned.other_bytes
  if dtype.itemsize == _ITEM:
    return ranges(found, bucket_bytes, rest)
  rounded = [
    each._replace(bytes=each.bytes // _ITEM * dtype.itemsize)
    for each in ranges(found, bucket_bytes, 0)
  ]
  if rest:
    rounded.append(Range(rest, 1.0, rounded[-1].copy_s))
  return rounded
