"""Times at which the gradients of layers become ready in an iteration.

A profile has the leaves of a gradient in the order in which the backward pass
computes them, each with its bytes and the share of the iteration's time after
which it is ready.
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

VERSION = 1  # Of profiles.
_ITEM = np.dtype(np.float32).itemsize
_FORWARD = 1 / 3  # Share of the forward pass in the time.
_ROOFLINE = re.compile(r'roofline\((\w+), *(\d{1,9})\)')
_FIELDS = ('name', 'bytes', 'ready')


class Layer(NamedTuple):
  """A leaf of a gradient.

  Attributes:
    bytes: Size, bytes.
    ready: Share of the iteration's time after which it is ready, 0 to 1.
    copy_s: Seconds from then on until the host has it.
  """

  bytes: int
  ready: float
  copy_s: float = 0.0


class Bucket(NamedTuple):
  """A contiguous part of a worker's gradient buffer, which travels as one.

  Attributes:
    bytes: Size, bytes.
    ready: Share of the iteration's time after which it is complete, 0 to 1.
    copy_s: Seconds from then on until the host has it.
  """

  bytes: int
  ready: float
  copy_s: float = 0.0


def in_proportion(sizes: Sequence[int]) -> list[Layer]:
  """Returns layers whose shares of the backward pass are those of their bytes.

  The backward pass has the last two thirds of the time: it multiplies twice for
  each product of the forward pass.

  Args:
    sizes: Bytes of each layer, in the order of the backward pass.
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
    field: Name of the config field, for the message.
    path: Path of a file; or a call such as 'roofline(alexnet, 128)', with a
      model of `rooflines` and a worker's number of examples.

  Raises:
    ValueError: If the file cannot be read or holds no profile, or if there is
      no such model; names the field.
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
  """Returns the layers of a profile that tools.profile has written.

  Args:
    content: Decoded content of the JSON file.

  Raises:
    ValueError: If it is no profile, or one of another version.
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


def scale(layers: Sequence[Layer], size_bytes: int) -> list[Layer]:
  """Returns layers scaled to a total size, each a multiple of 4 bytes."""
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


def buckets(
  layers: Sequence[Layer], bucket_bytes: float, rest_bytes: int
) -> list[Bucket]:
  """Returns buckets of consecutive layers.

  A bucket is closed as soon as it has at least `bucket_bytes`; 0 closes one for
  each layer.  The last one also has what is ready at the end: statistics, which
  are known after the gradient.

  Args:
    layers: Layers in the order of the backward pass.
    bucket_bytes: Size of a bucket, at least 0; inf for one bucket.
    rest_bytes: Bytes that are ready at the end.
  """
  found, size, ready, copy_s = [], 0, 0.0, 0.0
  for layer in layers:
    size, ready = size + layer.bytes, max(ready, layer.ready)
    copy_s = max(copy_s, layer.copy_s)
    if size and size >= bucket_bytes:
      found.append(Bucket(size, ready, copy_s))
      size, ready = 0, 0.0
  if size or rest_bytes or not found:
    ready = 1.0 if rest_bytes else ready
    found.append(Bucket(size + rest_bytes, ready, copy_s))
  return found


def shorten(parts: Sequence[Bucket], size_bytes: int) -> list[Bucket]:
  """Returns buckets scaled to another total size, ready at the same times."""
  total = max(sum(each.bytes for each in parts), 1)
  ends = itertools.accumulate(each.bytes for each in parts)
  cuts = [0, *(size_bytes * end // total // _ITEM * _ITEM for end in ends)]
  cuts[-1] = size_bytes
  return [
    each._replace(bytes=end - start)
    for each, (start, end) in zip(parts, itertools.pairwise(cuts), strict=True)
  ]


def spread(parts: Sequence[Bucket], sizes: Sequence[int]) -> list[Bucket]:
  """Returns buckets of other sizes, stretched over given ones end to end.

  Each is ready once all that lies before its end is ready.
  """
  total, sent = sum(each.bytes for each in parts), max(sum(sizes), 1)
  ends = [*itertools.accumulate(each.bytes for each in parts)]
  ready = [*itertools.accumulate((each.ready for each in parts), max)]
  copy_s = [*itertools.accumulate((each.copy_s for each in parts), max)]
  found = []
  for size, end in zip(sizes, itertools.accumulate(sizes), strict=True):
    place = bisect.bisect_left(ends, -(-end * total // sent))
    found.append(Bucket(size, ready[place], copy_s[place]))
  return found


def equal_sizes(size_bytes: int, bucket_bytes: float) -> list[int]:
  """Returns the bytes of equal layers, one for each bucket."""
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
) -> list[Bucket]:
  """Returns the buckets of a worker, in the order in which they are ready.

  Args:
    config: Config of the run, which may name a profile.
    learned: Model and data: a `Learning`.
    bucket_bytes: Size of a bucket in float32: see `buckets`.
    dtype: Type in which gradients travel; unless it is float32, statistics are
      a bucket of their own.
    copy_Bps: Rate of copies from an accelerator, bytes per second: its layers
      are ready once it has computed all, and are copied one after the other;
      inf without an accelerator.

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
    found = found if sizes else scale(found, params)
  else:
    found = in_proportion(sizes or equal_sizes(params, bucket_bytes))
  if copy_Bps < math.inf:
    ends = itertools.accumulate(each.bytes for each in found)
    found = [
      Layer(each.bytes, 1.0, end / copy_Bps)
      for each, end in zip(found, ends, strict=True)
    ]
  rest = stats + learned.other_bytes
  if dtype.itemsize == _ITEM:
    return buckets(found, bucket_bytes, rest)
  rounded = [
    each._replace(bytes=each.bytes // _ITEM * dtype.itemsize)
    for each in buckets(found, bucket_bytes, 0)
  ]
  if rest:
    rounded.append(Bucket(rest, 1.0, rounded[-1].copy_s))
  return rounded
