"""Forests as plain JSON, for other programs and other processes.

The schema, version 1, is `_SHAPE` below; docs/files.md explains the fields.
Every number that counts is an exact string, an integer or a fraction such as
'100/3'.  A hop is a list of node ids, from the worker that sends through
switches to the worker that receives; hops are in an order in which they can be
executed.  A certificate is a `cuts.Cut`, of the cluster with all links turned
round if the collective is a reduce-scatter, or, of an allreduce, a
`prices.Prices`.  A single worker has no trees, and null for rate, bound and
certificate.
"""

import hashlib
import json
import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from topology.bounds import cuts, prices
from topology.clusters import cluster as clusters
from topology.clusters.cluster import Cluster
from topology.forests import verify
from topology.forests.trees import Certificate, Forest, Tree

FORMAT = 'syncopate.forest'
VERSION = 1
# A list stands for any number of what it holds.
_HOPS = [[str]]
_TREE = {
  'root': str,
  'weight_Bps': Fraction,
  'share': Fraction,
  'up': _HOPS,
  'down': _HOPS,
}
_SHAPE = {
  'format': object,
  'version': object,
  'topology': object,
  'cluster': object,
  'collective': str,
  'rate_Bps': Fraction | None,
  'bound_Bps': Fraction | None,
  'gap': Fraction,
  'certificate': object,
  'trees': [_TREE],
}
_PRICES = {
  'kind': str,
  'links': [{'src': str, 'dst': str, 'price': Fraction}],
}
_CUT = {
  'kind': str,
  'nodes': [str],
  'links': [[str]],
  'parts': [{'weight': Fraction, 'nodes': [str]}],
  'switch_prices': [{'switch': str, 'price': Fraction}],
}
_NUMBER = re.compile(r'-?[0-9]+(/[0-9]+)?')


def fingerprint(cluster: Cluster) -> str:
  """Returns the SHA-256 of a cluster as hexadecimal digits.

  The input is `cluster.to_json` as compact JSON in ASCII with sorted keys, so
  that equal clusters, and only these, have the same digest.
  """
  return digest(clusters.to_json(cluster))


def digest(content: Any) -> str:
  """Returns the SHA-256 of plain data as hexadecimal digits."""
  text = json.dumps(content, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode('ascii')).hexdigest()


def to_json(cluster: Cluster, forest: Forest) -> dict[str, Any]:
  """Returns a sound forest and its cluster as plain data, for `from_json`."""
  return {
    'format': FORMAT,
    'version': VERSION,
    'topology': fingerprint(cluster),
    'cluster': clusters.to_json(cluster),
    'collective': forest.collective,
    'rate_Bps': _text(forest.rate_Bps),
    'bound_Bps': _text(forest.bound_Bps),
    'gap': str(forest.gap),
    'certificate': _certificate_to_json(forest.certificate),
    'trees': [
      {
        'root': tree.root,
        'weight_Bps': str(tree.weight_Bps),
        'share': str(tree.share),
        'up': [list(hop) for hop in tree.up],
        'down': [list(hop) for hop in tree.down],
      }
      for tree in forest.trees
    ],
  }


def from_json(data: Any) -> tuple[Cluster, Forest]:
  """Returns the cluster and the forest that plain data describe.

  The forest is equal to the one that was written, and `verify.check` has passed
  it, at the cost given there.

  Raises:
    ValueError: If a field is missing, unknown or not of its kind, the format or
      its version is another one, the cluster is not the one of the fingerprint,
      or the forest is not sound; names the field.
  """
  found = data.get('format') if isinstance(data, Mapping) else data
  _require(found == FORMAT, 'format', repr(FORMAT), found)
  version = data.get('version')
  known = type(version) is int and version == VERSION  # True is no version.
  _require(known, 'version', str(VERSION), version)
  fields = _read(data, _SHAPE, '')
  try:
    cluster = clusters.from_json(fields['cluster'])
  except ValueError as error:
    raise ValueError(f'cluster: {error}') from error
  same, got = fingerprint(cluster), fields['topology']
  _require(got == same, 'topology', f'{same!r}, that of the cluster', got)
  forest = Forest(
    fields['collective'],
    tuple(
      Tree(**{**row, 'up': list(row['up']), 'down': list(row['down'])})
      for row in fields['trees']
    ),
    fields['rate_Bps'],
    fields['bound_Bps'],
    _certificate(fields['certificate'], cluster),
  )
  try:
    verify.check(cluster, forest)
  except ValueError as error:
    raise ValueError(f'forest: {error}') from error
  _require(fields['gap'] == forest.gap, 'gap', f"'{forest.gap}'", data['gap'])
  return cluster, forest


def _text(number: Fraction | None) -> str | None:
  return None if number is None else str(number)


def _certificate_to_json(proof: Certificate | None) -> dict[str, Any] | None:
  if proof is None:
    return None
  if isinstance(proof, prices.Prices):
    links = [{'src': a, 'dst': b, 'price': str(p)} for a, b, p in proof.links]
    return {'kind': 'prices', 'links': links}
  return {
    'kind': 'cut',
    'nodes': list(proof.nodes),
    'links': [list(ends) for ends in proof.links],
    'parts': [{'weight': str(w), 'nodes': list(n)} for w, n in proof.parts],
    'switch_prices': [
      {'switch': switch, 'price': str(price)}
      for switch, price in proof.switch_prices
    ],
  }


def _certificate(value: Any, cluster: Cluster) -> Certificate | None:
  name = 'certificate'
  if len(cluster.workers) == 1:
    _require(value is None, name, 'null for a single worker', value)
  if value is None:
    return None
  kind = value.get('kind') if isinstance(value, Mapping) else value
  _require(kind in ('cut', 'prices'), f'{name}.kind', "'cut' or 'prices'", kind)
  if kind == 'prices':
    links = _read(value, _PRICES, name)['links']
    return prices.Prices(tuple(tuple(link.values()) for link in links))
  cut = _read(value, _CUT, name)
  parts, paid = (
    tuple(tuple(row.values()) for row in cut[key])
    for key in ('parts', 'switch_prices')
  )
  return cuts.Cut(cut['nodes'], cut['links'], parts, paid)


def _read(value: Any, shape: Any, field: str) -> Any:
  """Returns a value of a shape: tuples for lists, fields in its order."""
  if isinstance(shape, dict):
    _require(isinstance(value, Mapping), field, 'an object', value)
    inside = f'{field}.' if field else ''
    for key in value:
      if key not in shape:
        raise ValueError(f'{inside}{key}: expected none but {tuple(shape)}.')
    for key in shape:
      if key not in value:
        raise ValueError(f'{inside}{key}: expected a value, got none.')
    return {k: _read(value[k], shape[k], f'{inside}{k}') for k in shape}
  if isinstance(shape, list):
    _require(isinstance(value, list | tuple), field, 'a list', value)
    deep = isinstance(shape[0], dict)
    return tuple(
      _read(row, shape[0], f'{field}[{i}]' if deep else field)
      for i, row in enumerate(value)
    )
  if shape is str:
    _require(isinstance(value, str), field, 'a string', value)
  elif shape is Fraction or (shape is not object and value is not None):
    return _fraction(value, field)
  return value


def _fraction(value: object, field: str) -> Fraction:
  text = value if isinstance(value, str) else ''
  expected = "an exact string such as '25' or '100/3'"
  _require(_NUMBER.fullmatch(text) is not None, field, expected, value)
  try:
    return Fraction(text)
  except (ValueError, ZeroDivisionError) as error:
    raise ValueError(f'{field}: {error}.') from error


def _require(valid: bool, field: str, expected: str, got: object) -> None:
  if not valid:
    raise ValueError(f'{field}: expected {expected}, got {reprlib.repr(got)}.')
