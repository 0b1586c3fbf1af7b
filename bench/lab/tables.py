"""Tables that a lab measures: their rows, their columns and their defaults.

allreduce  Sums between hosts without a run.  forest is the one that the route
           of this name packs for the size; ring goes through the hosts in their
           order, best_ring in the fastest one; sharded has an equal shard for
           each host as its root; psum is XLA's gloo ring.
routes     Iterations of runs without a model, by route.  They compute for 10
           ms, and in rows of -beside as long as the optimum communicates.
steps      Steps of real models, whose computing shares this machine's
           processors.  Its sizes are models.
ladder     Steps with GradientFlow's techniques, one added at a time.  The
           gradient has AlexNet's layers; computing is a sleep, in which the
           backward pass takes as long as the sum in half precision.
local_steps  Iterations of H local steps of 20 ms, in rows of -H, or -HxF with
           F fragments, of which an iteration sums one after the other.
islands    Iterations of 8 local steps of 0.4 s on islands of two hosts each,
           by the sharding inside; in rows of -alone without a sleep.

Rows of PyTorch (gloo, ddp, diloco, powersgd) need its interpreter.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from analysis import pacing, printing
from bench.lab.conditions import (
  RUN,
  SUM,
  TORCH,
  USABLE,
  Condition,
  Lab,
)
from cluster.speed import layers
from models import sizes
from topology.packing.pack import pack

_ALONE_S = 0.01
_LOCAL_STEP_S, _ISLAND_STEP_S = 0.02, 0.4
_FORWARD = 1 / 3  # Share of the forward pass in the time of computing.
_BUCKET_BYTES = 2.0**20
_BATCH = 16  # Examples of a worker, with a model.
_CHUNK = 32_768
_ALEXNET = 'roofline(alexnet, 128)'
_ISLAND_STEPS, _PER_ISLAND = 8, 2
_TEXT_LENGTH, _TEXT_ROWS = 16, 26_228  # Short rows, for little computing.
# VGG16 of 1/8 and 1/4 of the width, and 25 MB in dense layers.
MODELS: Mapping[str, Mapping[str, Any]] = {
  'vgg8': {'model.name': 'vgg', 'model.vgg.width': 0.125},
  'vgg4': {'model.name': 'vgg', 'model.vgg.width': 0.25},
  'mlp': {'model.name': 'mlp', 'model.mlp.hidden': (1024, 2048, 500)},
}
_DATA = {
  'data.name': 'synthetic',
  'data.synthetic.num_test': 64,
  'batching.worker_batch': _BATCH,
  'optimizer.learning_rate': 1e-4,
}
# Channels of VGG16's blocks, and their convolutions.
_CHANNELS, _CONVS = (64, 128, 256, 512, 512), (2, 2, 3, 3, 3)


class Setting(NamedTuple):
  """Links, model or bytes that all rows of a group share.

  Attributes:
    lab: Hosts and their links.
    mbit: Base rate of the links, Mbit/s.
    size: MB of the vector that is summed, or one of `MODELS`.
    rounds: Number of measured iterations.
  """

  lab: Lab
  mbit: int
  size: str
  rounds: int

  @property
  def size_bytes(self) -> int:
    """Bytes of the vector; 0 for a model."""
    return 0 if self.size in MODELS else round(float(self.size) * 1e6) // 4 * 4

  def optimum_s(self, size_bytes: int) -> float:
    """Returns the seconds of bytes at the nominal rate of a packed forest.

    Args:
      size_bytes: Bytes of the vector.
    """
    return size_bytes / float(pack(self.lab.workers.cluster).bound_Bps or 1)


class Scheme(NamedTuple):
  """A row of a table.

  Attributes:
    system: RUN, SUM or TORCH.
    fields: Config fields of a run, arguments of a sum, or of a job of
      `torch_rank`, whose `layers` name a profile.
    compute: Seconds of computing, or part of the optimum's seconds in them: see
      `_compute_s`.
    model: One of `MODELS` instead of the setting's size.
    local_steps: Local steps of an iteration (H), each of `_LOCAL_STEP_S`; 0 if
      `compute` has the seconds.
    fragments: Fragments that are summed in turn (F).
  """

  system: str = RUN
  fields: Mapping[str, Any] = {}
  compute: str = 'alone'
  model: str = ''
  local_steps: int = 0
  fragments: int = 1


Row = Mapping[str, Any]
Column = Callable[[Row, Sequence[Row]], float | int | None]


class Table(NamedTuple):
  """Rows, columns and defaults of a table.

  Attributes:
    cases: Names of hosts, of `bench.hosts`.
    sizes: MB or models.
    rounds: Number of measured iterations.
    schemes: Rows by name.
    columns: Names of `_COLUMNS`.
    is_predicted: Whether the virtual clock predicts the runs.
  """

  cases: Sequence[str]
  sizes: Sequence[str]
  rounds: int
  schemes: Mapping[str, Scheme]
  columns: Sequence[str]
  is_predicted: bool = False


def _over(field: str) -> Column:
  """Returns a column of the time of an iteration over another time."""
  return lambda row, _: _divide(row.get('median_s'), row.get(field))


def _over_row(name: str) -> Column:
  """Returns a column of the time over that of another row, with the same H."""

  def ratio(row: Row, group: Sequence[Row]) -> float | None:
    steps = row['scheme'].rpartition('-')[2].partition('x')[0]
    others = [o for o in group if o['scheme'] == f'{name}-{steps}']
    return _divide(row.get('median_s'), *(o.get('median_s') for o in others))

  return ratio


def _over_best(row: Row, group: Sequence[Row]) -> float | None:
  times = [o['median_s'] for o in group if 'median_s' in o]
  return _divide(row.get('median_s'), min(times, default=None))


def _exposed_s(row: Row) -> float | None:
  if row.get('compute_s') is None:
    return None
  return float(row['median_s'] - row['compute_s'])


def _divide(above: float | None, below: float | None = None) -> float | None:
  return above / below if above and below else None


# Functions of a row and of all rows of its case and size; and their formats.
_COLUMNS: Mapping[str, tuple[Column, str]] = {
  'trees': (lambda row, _: row.get('trees'), 'd'),
  'depth': (lambda row, _: row.get('depth'), 'd'),
  'optimum s': (lambda row, _: row.get('optimum_s'), '.3f'),
  's': (lambda row, _: row.get('median_s'), '.4f'),
  'efficiency': (
    lambda row, _: _divide(row.get('optimum_s'), row.get('median_s')),
    '.3f',
  ),
  'CPU s/GB': (  # Of sums and not of a model's computing.
    lambda row, _: row.get('optimum_s') and row.get('cpu_s_per_GB'),
    '.2f',
  ),
  'compute s': (lambda row, _: row.get('compute_s'), '.3f'),
  'exposed s': (lambda row, _: _exposed_s(row), '.3f'),
  'exposed/optimum': (
    lambda row, _: _divide(_exposed_s(row), row.get('optimum_s')),
    '.3f',
  ),
  'virtual s': (lambda row, _: row.get('virtual_s'), '.4f'),
  'over virtual': (_over('virtual_s'), '.3f'),
  'over bound': (_over('bound_s'), '.3f'),
  'over best': (_over_best, '.2f'),
  'over DiLoCo': (_over_row('diloco'), '.3f'),
  'over DDP': (_over_row('ddp'), '.3f'),
  'late compilations': (lambda row, _: row.get('late_compilations'), 'd'),
}

_ROUTES = ('forest', 'ring', 'auto', 'native', 'server')
_PIPELINED = {'route.name': 'server', 'route.server.pipelined': True}
_SPARSE = {
  'wire.name': 'sparse',
  'wire.sparse.select_lag': 1,
  'wire.sparse.chunk': _CHUNK,
  'wire.sparse.sparsity': 0.9,
}
_FUSED = {'route.bucket_bytes': _BUCKET_BYTES, 'route.overlap': False}
_AHEAD = {'route.bucket_bytes': _BUCKET_BYTES, 'route.overlap': True}
_HALF = {'wire.dense.dtype': 'bfloat16'}
_RUNGS: Mapping[str, Mapping[str, Any]] = {
  'tensors': {'route.bucket_bytes': 0.0, 'route.overlap': False},
  'fused': _FUSED,
  'half': {**_FUSED, **_HALF},
  'overlap': {**_AHEAD, **_HALF},
  'ahead': _AHEAD,
  'float16': {**_AHEAD, 'wire.dense.dtype': 'float16'},
  'sparse': {**_AHEAD, **_SPARSE},
  'both': {**_AHEAD, **_SPARSE, 'wire.sparse.dtype': 'bfloat16'},
}
# Rungs of XLA, which begins when the whole gradient is computed.
_NATIVE = ('tensors', 'fused', 'half')
_HOOKS = ('none', 'bfloat16', 'float16')
_BUCKETS = {
  'tensors': 0.0,
  '1MiB': _BUCKET_BYTES,
  '4MiB': 2.0**22,
  'default': None,
  'one': math.inf,
}
_RANK = 4
_STEPS = (1, 8, 32)


def _rung(route: str, rung: str) -> Scheme:
  fields = {'route.name': route, **_RUNGS[rung]}
  if route == 'native':
    del fields['route.overlap']
  else:
    fields['cluster.speed.layers'] = _ALEXNET
  return Scheme(RUN, fields, compute='backward')


TABLES: Mapping[str, Table] = {
  'allreduce': Table(
    cases=(
      *('equal4', 'slow4', 'unequal6', 'groups6', 'shared6'),
      *('random6', 'random8'),
    ),
    sizes=('5',),
    rounds=5,
    schemes={
      **{
        name: Scheme(SUM, {'scheme': name}, compute='none')
        for name in ('forest', 'ring', 'best_ring', 'sharded', 'psum')
      },
      'ring-bfloat16': Scheme(
        SUM, {'scheme': 'ring', 'dtype': 'bfloat16'}, compute='none'
      ),
      'gloo': Scheme(TORCH, {'kind': 'sum'}, compute='none'),
      'ddp': Scheme(TORCH, {'kind': 'step'}, compute='none'),
    },
    columns=('trees', 'depth', 'optimum s', 's', 'efficiency', 'CPU s/GB'),
  ),
  'routes': Table(
    cases=('equal4', 'slow4', 'groups6'),
    sizes=('5',),
    rounds=8,
    schemes={
      **{name: Scheme(RUN, {'route.name': name}) for name in _ROUTES},
      'pipelined': Scheme(RUN, _PIPELINED),
      **{
        f'{name}-beside': Scheme(RUN, {'route.name': name}, compute='optimum')
        for name in ('forest', 'ring')
      },
      'ddp': Scheme(TORCH, {'kind': 'step'}),
    },
    columns=(
      *('optimum s', 'compute s', 's', 'virtual s', 'over virtual'),
      *('exposed/optimum', 'over best'),
    ),
    is_predicted=True,
  ),
  'steps': Table(
    cases=('equal2', 'equal4', 'slow4', 'groups4'),
    sizes=('vgg8', 'vgg4', 'mlp'),
    rounds=20,
    schemes={
      **{
        name: Scheme(RUN, {'route.name': name}, compute='model')
        for name in ('forest', 'ring', 'native', 'server')
      },
      'ddp': Scheme(TORCH, {'kind': 'step'}, compute='model'),
    },
    columns=('s', 'over best', 'compute s', 'late compilations'),
  ),
  'ladder': Table(
    cases=('equal4',),
    sizes=('25',),
    rounds=6,
    schemes={
      **{rung: _rung('ring', rung) for rung in _RUNGS},
      **{f'forest-{rung}': _rung('forest', rung) for rung in _RUNGS},
      **{f'native-{rung}': _rung('native', rung) for rung in _NATIVE},
      'lowrank': Scheme(
        RUN,
        {
          'route.name': 'ring',
          'wire.name': 'lowrank',
          'wire.lowrank.rank': _RANK,
        },
        compute='model',
        model='mlp',
      ),
      **{
        f'ddp-{hook}-{name}': Scheme(
          TORCH,
          {
            'kind': 'step',
            'layers': _ALEXNET,
            'hook': hook,
            'bucket_bytes': size,
          },
          compute='backward',
        )
        for hook in _HOOKS
        for name, size in _BUCKETS.items()
      },
      # One bucket: with several, the hook blocks gloo's two threads while it
      # waits for messages that these threads would have to send.
      'powersgd': Scheme(
        TORCH,
        {
          'kind': 'step',
          'hook': 'powersgd',
          'bucket_bytes': math.inf,
          'rank': _RANK,
        },
        compute='model',
        model='mlp',
      ),
    },
    columns=(
      *('s', 'compute s', 'exposed s', 'optimum s', 'exposed/optimum'),
      'CPU s/GB',
    ),
  ),
  'local_steps': Table(
    cases=('equal4',),
    sizes=('5',),
    rounds=8,
    schemes={
      **{
        f'{route}-{steps}': Scheme(
          RUN, {'route.name': route}, local_steps=steps
        )
        for steps in _STEPS
        for route in ('server', 'ring')
      },
      'ring-32x4': Scheme(
        RUN, {'route.name': 'ring'}, local_steps=32, fragments=4
      ),
      **{
        f'{name}-{steps}': Scheme(TORCH, {'kind': kind}, local_steps=steps)
        for steps in _STEPS
        for name, kind in (('diloco', 'diloco'), ('ddp', 'step'))
      },
    },
    columns=(
      *('s', 'exposed/optimum', 'virtual s', 'over virtual', 'over bound'),
      *('over DiLoCo', 'over DDP'),
    ),
    is_predicted=True,
  ),
  'islands': Table(
    cases=('islands6',),
    sizes=('0',),
    rounds=8,
    schemes={
      f'{sharding}{suffix}': Scheme(
        RUN, {'cluster.island_sharding': sharding}, compute=compute
      )
      for sharding in ('replicated', 'fsdp')
      for suffix, compute in (('', 'islands'), ('-alone', 'none'))
    },
    columns=('s', 'compute s', 'virtual s', 'over virtual'),
    is_predicted=True,
  ),
}


def make_condition(name: str, scheme: Scheme, setting: Setting) -> Condition:
  """Returns the condition that measures a row."""
  hosts = len(setting.lab.workers.up)
  if 'cluster.island_sharding' in scheme.fields:
    return _island_condition(name, scheme, setting)
  compute_s = _compute_s(scheme, setting)
  if scheme.system == SUM:
    size = {'size_bytes': setting.size_bytes, 'rounds': setting.rounds}
    arguments = {**size, **scheme.fields}
    return Condition(name, hosts, 0, False, arguments, system=SUM)
  if scheme.system == TORCH:
    job = _torch_job(scheme, setting, compute_s)
    return Condition(name, hosts, 0, False, job, system=TORCH)
  model = scheme.model or setting.size
  fields: dict[str, Any] = {
    'sync.name': 'bsp',
    'cluster.speed.name': 'constant',
  }
  if model in MODELS:
    fields |= {**MODELS[model], **_DATA}
  else:
    fields['model.none.size_bytes'] = setting.size_bytes
    fields['cluster.speed.fixed_s'] = compute_s / scheme.fragments
  if scheme.local_steps:
    fields['batching.local_steps'] = scheme.local_steps
  if scheme.fragments > 1:
    fields['route.fragments'] = scheme.fragments
    fields['route.overlap_steps'] = scheme.local_steps // scheme.fragments
  fields |= scheme.fields
  servers = hosts if fields['route.name'] == 'server' else 0
  iterations = _count_iterations(setting.rounds) * scheme.fragments
  return Condition(name, hosts, servers, False, fields, iterations)


def find_bounds(scheme: Scheme, setting: Setting) -> dict[str, float]:
  """Returns bounds on the seconds of a row, at the nominal rates of its links.

  `optimum_s` has the bytes alone, and `bound_s` also the computing, during
  which fragments are summed.  There are none for a model.
  """
  if scheme.model or not setting.size_bytes:
    return {}
  sent_bytes = count_message_bytes(scheme.fields, setting.size_bytes)
  optimum_s = setting.optimum_s(sent_bytes)
  both = _compute_s(scheme, setting), optimum_s
  bound_s = max(both) if scheme.fragments > 1 else sum(both)
  return {'optimum_s': optimum_s, 'bound_s': bound_s}


def count_message_bytes(fields: Mapping[str, Any], size_bytes: int) -> int:
  """Returns the bytes that a row sums, without norms and step statistics.

  Args:
    size_bytes: Bytes of the vector in float32.
  """
  numbers = size_bytes // 4
  names = ('wire.dense.dtype', 'wire.sparse.dtype', 'dtype', 'hook')
  is_half = any('16' in fields.get(name, '') for name in names)
  if fields.get('wire.name') == 'sparse':
    chunks = math.ceil(numbers / _CHUNK)
    numbers = math.ceil(chunks * (1 - fields['wire.sparse.sparsity'])) * _CHUNK
  return numbers * (2 if is_half else 4)


def torch_model(model: str) -> dict[str, Any]:
  """Returns one of `MODELS` for a job of `torch_rank`."""
  fields = MODELS[model]
  if fields['model.name'] == 'mlp':
    return {'name': 'mlp', 'hidden': fields['model.mlp.hidden']}
  width = fields['model.vgg.width']
  blocks = [
    [sizes.scaled(channels, width)] * convs
    for channels, convs in zip(_CHANNELS, _CONVS, strict=True)
  ]
  hidden = sizes.scaled(_CHANNELS[-1], width)
  return {'name': 'vgg', 'blocks': blocks, 'hidden': hidden}


def render(name: str, rows: Sequence[Row]) -> str:
  """Returns stored rows of a table as Markdown."""
  columns = TABLES[name].columns
  lines = [('links', 'Mbit/s', 'size', 'row', *columns)]
  for row in rows:
    key = [row[field] for field in ('case', 'mbit', 'size')]
    group = [o for o in rows if [o['case'], o['mbit'], o['size']] == key]
    cells = [_cell(column, row, group) for column in columns]
    if 'error' in row:
      cells = ['failed', *cells[1:]]
    lines.append((*map(str, key), row['scheme'], *cells))
  return printing.markdown(lines)


def _cell(column: str, row: Row, group: Sequence[Row]) -> str:
  function, style = _COLUMNS[column]
  value = function(row, group)
  return '' if value is None else format(value, style)


def _compute_s(scheme: Scheme, setting: Setting) -> float:
  """Returns the seconds of an iteration's computing; 0 for that of a model."""
  if scheme.local_steps:
    return scheme.local_steps * _LOCAL_STEP_S
  if scheme.compute == 'alone':
    return _ALONE_S
  if scheme.compute == 'islands':
    return _ISLAND_STEPS * _ISLAND_STEP_S
  optimum_s = functools.partial(setting.optimum_s, setting.size_bytes)
  if scheme.compute == 'optimum':
    return optimum_s()
  if scheme.compute == 'backward':
    return optimum_s() / 2 / (1 - _FORWARD)
  return 0.0


def _count_iterations(rounds: int) -> int:
  """Returns the iterations of a run, of which `rounds` are measured."""
  return math.ceil(rounds / (1 - pacing.SKIPPED)) + 1


def _island_condition(name: str, scheme: Scheme, setting: Setting) -> Condition:
  """Returns the condition of islands that train a language model."""
  case = setting.lab.workers
  islands = len(case.up) // _PER_ISLAND
  iterations = _count_iterations(setting.rounds)
  examples = islands * _ISLAND_STEPS * _PER_ISLAND
  inside_Bps = case.up[0] * 1e6 / 8 * float(USABLE)
  fields = {
    'epochs': iterations * examples / _TEXT_ROWS,
    'eval_every': 100.0,
    'model.name': 'transformer',
    'route.name': 'ring',
    'data.text.length': _TEXT_LENGTH,
    'batching.local_steps': _ISLAND_STEPS,
    'batching.worker_batch': _PER_ISLAND,
    'cluster.network.island_Bps': (inside_Bps,),
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': _compute_s(scheme, setting) or 1e-3,
    **scheme.fields,
  }
  return Condition(
    *(name, islands, 0, False, fields, iterations),
    hosts_per_worker=_PER_ISLAND,
    config='lm_diloco',
  )


def _torch_job(
  scheme: Scheme, setting: Setting, compute_s: float
) -> dict[str, Any]:
  """Returns the job of `torch_rank` that measures a row."""
  fields = dict(scheme.fields)
  kind, profile = fields.pop('kind'), fields.pop('layers', '')
  size_bytes, rounds = setting.size_bytes, setting.rounds
  if kind == 'sum':
    return {'kind': kind, 'bytes': size_bytes, 'rounds': rounds}
  parts = layers.in_proportion(layers.equal_sizes(size_bytes, _BUCKET_BYTES))
  if profile:
    parts = layers.scale(layers.read('layers', profile), size_bytes)
  steps = scheme.local_steps or 1
  if kind == 'diloco':
    return {
      'kind': kind,
      'layers': [(each.bytes, each.ready) for each in parts],
      'seconds': _LOCAL_STEP_S,
      'local_steps': steps,
      'rounds': rounds,
    }
  model = scheme.model or setting.size
  if model in MODELS:
    content = torch_model(model)
  else:  # Gradients of the last local step are ready late.
    late = [(p.bytes, (steps - 1 + p.ready) / steps) for p in parts]
    content = {'name': 'sleeping', 'layers': late, 'seconds': compute_s}
  return {
    'kind': kind,
    'model': content,
    'steps': rounds,
    'batch': _BATCH if model in MODELS else 1,
    'bucket_bytes': None,
    'hook': 'none',
    'rank': 1,
    **fields,
  }
