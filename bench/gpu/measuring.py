"""Measures the rows of each job; `JOBS` of bench.gpu.rows has their aims.

One function measures each job, and reports each value as soon as it is known.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import analysis
from analysis import traffic
from bench.gpu import processes
from bench.gpu.processes import Context, Stepper
from launch.processes import module_command

_PART_S = 0.5  # Duration of a turn of steps.
_TURNS = 3, 9  # Least and most turns.
_LATE_S = 6.0  # No turn starts in this time before a job's deadline.
_SYNTHETIC = {
  'data.name': 'synthetic',
  'data.synthetic.num_train': 512,
  'data.synthetic.num_test': 32,
}
MODELS: dict[str, dict[str, Any]] = {
  'vgg16': {},
  'vgg16_full': {
    **_SYNTHETIC,
    'model.vgg.width': 1.0,
    'batching.worker_batch': 32,
  },
  'alexnet': {
    **_SYNTHETIC,
    'model.name': 'alexnet',
    'batching.worker_batch': 32,
  },
  'resnet50': {
    **_SYNTHETIC,
    'data.synthetic.pixels': 224,
    'data.synthetic.num_train': 256,
    'model.name': 'resnet',
    'model.resnet.depth': 50,
    'batching.worker_batch': 32,
  },
  'transformer': {
    'model.name': 'transformer',
    'model.transformer.width': 128,
    'model.transformer.heads': 4,
    'data.name': 'text',
  },
  'topk': {
    **_SYNTHETIC,
    'model.name': 'mlp',
    'model.mlp.hidden': (320,),  # 986,570 numbers.
    'wire.name': 'topk',
  },
}
# Sizes of a dry run, in which convolutions would take a minute to compile.
_TINY = {'model.name': 'mlp', 'model.mlp.hidden': (16,)}
_DRY: dict[str, dict[str, Any]] = {
  **{
    name: {**_SYNTHETIC, **_TINY}
    for name in ('vgg16', 'vgg16_full', 'alexnet', 'resnet50')
  },
  'transformer': {
    'data.name': 'text',
    'data.text.length': 16,
    'model.name': 'transformer',
    'model.transformer.layers': 1,
    'model.transformer.width': 8,
  },
  'topk': {**_SYNTHETIC, **_TINY, 'wire.name': 'topk'},
}


def measure(name: str, context: Context) -> None:
  """Measures the job of this name.

  Raises:
    RuntimeError: If a process of the job fails; values reported before count.
  """
  MEASURES[name](context)


def model(name: str, *, is_dry: bool) -> dict[str, Any]:
  """Returns the config fields of a model and its data.

  Args:
    name: Name of a job that measures steps.
  """
  return (_DRY if is_dry else MODELS)[name]


def _steps(context: Context) -> None:
  """Measures steps with and without determinism, and those of a bare loop."""
  name = context.folder.name
  fields = model(name, is_dry=context.is_dry)
  env = processes.environ(2)
  deterministic, default = (
    Stepper(context, str(flag), {**fields, 'deterministic': flag}, env)
    for flag in (True, False)
  )
  took = _turns(
    context,
    {
      'with': (deterministic, 'product'),
      'bare': (deterministic, 'bare'),
      'without': (default, 'product'),
    },
  )
  ratio, detail = _ratio(took['with'], took['without'])
  context.report('determinism', ratio, detail)
  ratio, detail = _ratio(took['bare'], took['with'])
  context.report('bare loop', ratio, detail)
  deterministic.close()
  default.close()


def _turns(
  context: Context, ways: Mapping[str, tuple[Stepper, str]]
) -> dict[str, list[float]]:
  """Returns the seconds of a step by way and turn; the ways alternate."""
  few = 2
  for process, request in ways.values():  # Compiles.
    process.ask(request, few)
  first_s = max(process.ask(request, few) for process, request in ways.values())
  part_s = _PART_S / 10 if context.is_dry else _PART_S
  steps = max(round(part_s * few / first_s), few)
  least, most = _TURNS
  took: dict[str, list[float]] = {name: [] for name in ways}
  for turn in range(most):
    is_late = time.monotonic() > context.deadline - _LATE_S
    if turn >= least and (is_late or context.is_dry):
      break
    for name, (process, request) in ways.items():
      took[name].append(process.ask(request, steps) / steps)
  return took


def _ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, str]:
  """Returns the median ratio of all turns, and both medians as text."""
  ratio = statistics.median(a / b for a, b in zip(over, under, strict=True))
  above, below = (1e3 * statistics.median(times) for times in (over, under))
  return ratio, f'{above:.3g} ms over {below:.3g} ms, {len(over)} turns'


def _ring(context: Context) -> None:
  """Measures copies and overlap of two processes that share a device."""
  rates = _copies(context)
  ratios = [each['buckets'] / each['whole'] for each in rates]
  detail = ', '.join(
    f'{each["buckets"] / 1e9:.2f} over {each["whole"] / 1e9:.2f} GB/s'
    for each in rates
  )
  context.report('copy to host', min(ratios), detail)
  _report_pinned(context, rates)
  to_device = sum(each['to_device'] for each in rates) / 1e9
  context.report('copy to device', to_device, 'sum of both')
  fields: dict[str, Any] = {
    'epochs': 2.0,
    'route.name': 'ring',
    'model.vgg.width': 0.5,
    'cluster.timeout_s': 30.0,
    'cluster.speed.slowdown': (1.0,),
  }
  if context.is_dry:
    del fields['model.vgg.width']
    fields |= {**_TINY, 'epochs': 0.5}
  took: dict[bool, list[float]] = {True: [], False: []}
  exposed: dict[bool, list[float]] = {True: [], False: []}
  for turn, overlap in enumerate((True, False, True)):
    run_fields = {**fields, 'route.overlap': overlap}
    folder = processes.launch(context, f'run{turn}', run_fields, workers=2)
    run = analysis.read(folder)
    took[overlap].append(analysis.pace(run).median_s)
    exposed[overlap].append(traffic.longest_epoch(run).mean('push_s'))
  summary = run.summary or {}
  for row, seconds in (
    ('overlap time', took),
    ('exposed communication', exposed),
  ):
    ratio = statistics.mean(seconds[True]) / seconds[False][0]
    overlapped, separate = (
      ' and '.join(f'{1e3 * s:.3g} ms' for s in seconds[overlap])
      for overlap in (True, False)
    )
    context.report(row, ratio, f'{overlapped} over {separate}')
  kind = summary['overlap']
  context.report('overlap', float(kind != 'none'), f'of sending and {kind}')


def _report_pinned(
  context: Context, rates: Sequence[Mapping[str, float]]
) -> None:
  """Reports the gain of pinned memory, on devices that can copy to it."""
  if not any(each['pinned'] for each in rates):
    context.report('pinned memory', None, 'the device has no pinned memory')
    return
  ratios = [each['buckets'] / each['pageable'] for each in rates]
  detail = ', '.join(
    f'{each["buckets"] / 1e9:.2f} over {each["pageable"] / 1e9:.2f} GB/s'
    for each in rates
  )
  context.report('pinned memory', min(ratios), detail)


def _copies(context: Context) -> list[dict[str, float]]:
  """Returns the rates of two processes that copy at the same time."""
  size = ['--mib=4', '--seconds=0.1'] if context.is_dry else []
  names, env = ('copying0', 'copying1'), processes.environ(2)
  words, group = ('bench.gpu.copying', *size), context.group
  for name in names:
    group.start(module_command(name, *words, env=env, answers=True))
  for name in names:
    group.receive(name, context.left_s)
  for name in names:
    group.send(name, '')
  lines = [group.receive(name, context.left_s) for name in names]
  context.finish(*names)
  return [*map(json.loads, lines)]


MEASURES: dict[str, Callable[[Context], None]] = {
  **dict.fromkeys(MODELS, _steps),
  'ring': _ring,
}
