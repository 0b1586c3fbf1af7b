"""Forests as plain JSON, for other programs and other processes.

The schema, version 1; every number that counts is an exact string, an integer
or a fraction such as '100/3', and a hop is a list of node ids, from the worker
that sends through switches to the worker that receives:

  {
    'format': 'syncopate.forest',
    'version': 1,
    'topology': SHA-256 of the cluster, as of `fingerprint`,
    'cluster': {
      'nodes': [{'id': 'w0', 'worker': true}, ...],
      'links': [{'src': 'w0', 'dst': 'w1', 'GBps': '25'}, ...],
    },
    'collective': 'allreduce', 'allgather' or 'reduce_scatter',
    'rate_Bps': bytes per second of all trees together,
    'bound_Bps': what no forest can exceed,
    'gap': 1 - rate / bound,
    'certificate': the proof of the bound,
    'trees': [
      {'root': 'w0', 'weight_Bps': bytes per second, 'share': of all bytes,
       'up': [hop, ...], 'down': [hop, ...]},
      ...
    ],
  }

Hops are in an order in which they can be executed.  The certificate of an
allgather or a reduce-scatter is a `cuts.Cut`, of the cluster with all links
turned round if it is a reduce-scatter:

  {
    'kind': 'cut', 'nodes': [id, ...], 'links': [[src, dst], ...],
    'parts': [{'weight': number, 'nodes': [id, ...]}, ...],
    'switch_prices': [{'switch': id, 'price': number}, ...],
  }

That of an allreduce is a `prices.Prices`:

  {'kind': 'prices', 'links': [{'src': id, 'dst': id, 'price': number}, ...]}

A single worker has no trees, and null for rate, bound and certificate.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from topology.bounds import cuts, prices
from topology.clusters import cluster as clusters
from topology.clusters.cluster import Cluster, Ends
from topology.forests import verify
from topology.forests.trees import Certificate, Forest, Hop, Tree

FORMAT = 'syncopate.forest'
VERSION = 1
_FIELDS = (
  *('format', 'version', 'topology', 'cluster', 'collective', 'rate_Bps'),
  *('bound_Bps', 'gap', 'certificate', 'trees'),
)
_TREE = ('root', 'weight_Bps', 'share', 'up', 'down')
_CUT = ('kind', 'nodes', 'links', 'parts', 'switch_prices')
_NUMBER = re.compile(r'-?[0-9]+(/[0-9]+)?')


def fingerprint(cluster: Cluster) -> str:
  """Returns the SHA-256 of a cluster as hexadecimal digits.

  Of `cluster.to_json` as compact JSON in ASCII with sorted keys, so that equal
  clusters, and only these, have the same.
  """
  text = json.dumps(
    clusters.to_json(cluster), sort_keys=True, separators=(',', ':')
  )
  return hashlib.sha256(text.encode('ascii')).hexdigest()


def to_json(cluster: Cluster, forest: Forest) -> dict[str, Any]:
  """Returns what `from_json` reads: the schema above.

  Args:
    cluster: That of the forest.
    forest: Sound, as `verify.check` has it.
  """
  return {
    'format': FORMAT,
    'version': VERSION,
    'topology': fingerprint(cluster),
    'cluster': clusters.to_json(cluster),
    'collective': forest.collective,
    'rate_Bps': _number_or_null(forest.rate_Bps),
    'bound_Bps': _number_or_null(forest.bound_Bps),
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

  Args:
    data: As of `to_json`.

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
  fields = _object(data, '', _FIELDS)
  try:
    cluster = clusters.from_json(fields['cluster'])
  except (TypeError, ValueError) as error:
    raise ValueError(f'cluster: {error}') from error
  same, got = fingerprint(cluster), fields['topology']
  _require(got == same, 'topology', f'{same!r}, that of the cluster', got)
  forest = Forest(
    _text(fields['collective'], 'collective'),
    tuple(
      _tree(row, f'trees[{number}]')
      for number, row in enumerate(_list(fields['trees'], 'trees'))
    ),
    _fraction_or_none(fields['rate_Bps'], 'rate_Bps'),
    _fraction_or_none(fields['bound_Bps'], 'bound_Bps'),
    _certificate(fields['certificate'], cluster),
  )
  try:
    verify.check(cluster, forest)
  except ValueError as error:
    raise ValueError(f'forest: {error}') from error
  gap = _fraction(fields['gap'], 'gap')
  _require(gap == forest.gap, 'gap', f"'{forest.gap}'", fields['gap'])
  return cluster, forest


def _number_or_null(number: Fraction | None) -> str | None:
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
    rows = _object(value, name, ('kind', 'links'))['links']
    return prices.Prices(tuple(_priced(rows, f'{name}.links', 'src', 'dst')))
  fields = _object(value, name, _CUT)
  return cuts.Cut(
    _ids(fields['nodes'], f'{name}.nodes'),
    tuple(_ends(row, f'{name}.links') for row in _list(fields['links'], name)),
    tuple(_parts(fields['parts'], f'{name}.parts')),
    tuple(_priced(fields['switch_prices'], f'{name}.switch_prices', 'switch')),
  )


def _parts(value: object, field: str) -> list[tuple[Fraction, tuple[str, ...]]]:
  rows = [
    _object(row, field, ('weight', 'nodes')) for row in _list(value, field)
  ]
  return [
    (_fraction(row['weight'], field), _ids(row['nodes'], field)) for row in rows
  ]


def _priced(value: object, field: str, *ends: str) -> list[tuple]:
  """Nodes with their price at the end."""
  rows = [_object(row, field, (*ends, 'price')) for row in _list(value, field)]
  return [
    (*(_text(row[end], field) for end in ends), _fraction(row['price'], field))
    for row in rows
  ]


def _tree(value: object, field: str) -> Tree:
  row = _object(value, field, _TREE)
  return Tree(
    _text(row['root'], f'{field}.root'),
    _fraction(row['weight_Bps'], f'{field}.weight_Bps'),
    _fraction(row['share'], f'{field}.share'),
    _hops(row['up'], f'{field}.up'),
    _hops(row['down'], f'{field}.down'),
  )


def _hops(value: object, field: str) -> list[Hop]:
  return [_ids(hop, field) for hop in _list(value, field)]


def _ends(value: object, field: str) -> Ends:
  ids = _ids(value, field)
  _require(len(ids) == 2, field, 'two nodes', value)
  return ids[0], ids[1]


def _ids(value: object, field: str) -> tuple[str, ...]:
  return tuple(_text(node, field) for node in _list(value, field))


def _object(
  value: object, field: str, keys: Sequence[str]
) -> Mapping[str, Any]:
  if not isinstance(value, Mapping):
    raise _wrong(field, 'an object', value)
  inside = f'{field}.' if field else ''
  for key in keys:
    if key not in value:
      raise ValueError(f'{inside}{key}: expected a value, got none.')
  for key in value:
    if key not in keys:
      raise ValueError(f'{inside}{key}: expected none but {keys}.')
  return value


def _list(value: object, field: str) -> Sequence[Any]:
  if not isinstance(value, list | tuple):
    raise _wrong(field, 'a list', value)
  return value


def _text(value: object, field: str) -> str:
  if not isinstance(value, str):
    raise _wrong(field, 'a string', value)
  return value


def _fraction_or_none(value: object, field: str) -> Fraction | None:
  return None if value is None else _fraction(value, field)


def _fraction(value: object, field: str) -> Fraction:
  expected = "an exact string such as '25' or '100/3'"
  text = value if isinstance(value, str) else ''
  _require(_NUMBER.fullmatch(text) is not None, field, expected, value)
  try:
    return Fraction(text)
  except (ValueError, ZeroDivisionError) as error:
    raise ValueError(f'{field}: {error}.') from error


def _require(valid: bool, field: str, expected: str, got: object) -> None:
  if not valid:
    raise _wrong(field, expected, got)


def _wrong(field: str, expected: str, got: object) -> ValueError:
  return ValueError(f'{field}: expected {expected}, got {got!r}.')
