"""Measures the rows of each job; `JOBS` of bench.gpu.rows has their aims.

One function measures each job, and reports each value as soon as it is known.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis import traffic
from bench.gpu import processes, training
from bench.gpu.processes import Context, Stepper
from bench.lab import conditions
from cluster.process import devices, roles
from launch.processes import module_command
from outputs import checkpoints
from tools import same

_ROOT = pathlib.Path(__file__).parents[2]
_PART_S = 0.5  # Duration of a turn of steps.
_TURNS = 3, 9  # Least and most turns.
_LATE_S = 6.0  # No turn starts in this time before a job's deadline.
# The cache stores programs of any compile time, so that they can be counted.
_ALL_PROGRAMS = {
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}
_DIFFERS = re.compile(r'parameters differ by (\S+) at most')
_NO_TESTS = 5  # Exit code of pytest.

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
_PRECISIONS: dict[str, dict[str, Any]] = {
  'float32': {'precision.matmul': 'float32'},
  'TF32': {'precision.matmul': 'tensorfloat32'},
  'bfloat16': {'precision.dtype': 'bfloat16'},
  'float16': {
    'precision.dtype': 'float16',
    'precision.loss_scaling': 'dynamic',
  },
}


def measure(name: str, context: Context) -> None:
  """Measures a job.

  Args:
    name: Name of the job.
    context: Context of the job.

  Raises:
    RuntimeError: If a process of the job fails; values reported before count.
  """
  MEASURES[name](context)


def model(name: str, *, is_dry: bool) -> dict[str, Any]:
  """Returns the config fields of a model and its data.

  Args:
    name: Name of a job that measures steps.
    is_dry: True for tiny sizes.
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
  """Returns the seconds of a step by way and turn; the ways alternate.

  Args:
    context: Context of the job.
    ways: Processes and their requests, by name.
  """
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


def _precision(context: Context) -> None:
  """Measures gradient errors and step times of a model in all precisions."""
  fields = model('vgg16_full', is_dry=context.is_dry)
  env = processes.environ(len(_PRECISIONS))
  cpu = processes.environ(JAX_PLATFORMS='cpu')
  steppers = {
    name: Stepper(context, name, fields | precision, env)
    for name, precision in _PRECISIONS.items()
  }
  reference = Stepper(context, 'reference', fields, cpu)
  expected = _gradient(context, 'reference', reference)
  reference.close()
  for name, stepper in steppers.items():
    error = _gradient(context, name, stepper) - expected
    relative = float(np.linalg.norm(error) / np.linalg.norm(expected))
    context.report(f'{name} error', relative)
  took = _turns(
    context, {name: (each, 'product') for name, each in steppers.items()}
  )
  for name in steppers:
    if name != 'float32':
      context.report(f'{name} time', *_ratio(took[name], took['float32']))
  for each in steppers.values():
    each.close()


def _gradient(context: Context, name: str, stepper: Stepper) -> np.ndarray:
  """Returns the first gradient of a process, float64 [numbers]."""
  path = context.folder / f'{name}.npz'
  stepper.ask('gradient', path)
  with np.load(path) as content:
    return content['gradient']


def _virtual(context: Context) -> None:
  """Compares two equal virtual runs, and a killed and resumed one."""
  fields: dict[str, Any] = {
    'epochs': 20.0,
    'log_every': 10,
    'checkpoint.every_examples': 1437,
  }
  if context.is_dry:
    fields |= {**_TINY, 'epochs': 12.0}
  # Without a cache each process selects its kernels again.
  env = processes.environ(3, JAX_ENABLE_COMPILATION_CACHE='false')

  def start(name: str) -> None:
    folder = context.folder / name
    words = ['bench.gpu.training', f'--workdir={folder}']
    words += [f'--report={folder}.reports', *training.flags(fields)]
    context.group.start(module_command(name, *words, env=env))

  names = ('first', 'second', 'killed')
  for name in names:
    start(name)
  _kill_after_checkpoint(context, 'killed')
  start('killed')
  for name in names:
    context.finish(name)
    if name != 'first':
      row = 'equal runs' if name == 'second' else 'kill and resume'
      differences = _differences(
        context.folder / 'first', context.folder / name
      )
      context.report(row, len(differences), '; '.join(differences))


def _kill_after_checkpoint(context: Context, name: str) -> None:
  """Kills a run between its first checkpoint and its end.

  Raises:
    RuntimeError: If the run ends before.
  """
  folder = context.folder / name
  while not checkpoints.steps(folder / 'checkpoints'):
    if context.group.code(name) is not None:
      end = context.tail(name)
      raise RuntimeError(f'the run has ended before it was killed: {end}')
    time.sleep(0.01)
  context.group.kill(name)
  if (folder / 'summary.json').exists():
    raise RuntimeError('the run has finished before it was killed')


def _differences(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """Returns the differences between the files of two virtual runs."""
  differences = list(same.differences(one, other))
  digests = {processes.reports(run)[-1]['digest'] for run in (one, other)}
  if len(digests) > 1:
    differences.append(f'digests {" and ".join(sorted(map(str, digests)))}')
  return differences


def _digits(context: Context) -> None:
  """Measures accuracy and compilations of `make train`."""
  fields = {'epochs': 2.0, **_TINY} if context.is_dry else {}
  folder = context.folder / 'run'
  words = ['bench.gpu.training', f'--workdir={folder}']
  words += ['--config=vgg16_elastic', f'--report={folder}.reports']
  words += training.flags(fields)
  processes.run(context, 'run', words, processes.environ())
  (report,) = processes.reports(folder)
  summary = report['summary']
  detail = f'{summary["wall_s"]:.1f} s of {summary["iterations"]} iterations'
  context.report('accuracy', summary['final_accuracy'], detail)
  context.report('compilations', summary['compilations'])


def _server(context: Context) -> None:
  """Compares a parameter-server run with its recomputation."""
  fields = _real(context)
  folder = processes.launch(context, 'run', fields, workers=2, servers=1)
  difference, _ = _recompute(context, folder)
  context.report('recompute', difference)


def _real(context: Context, **changes: Any) -> dict[str, Any]:
  """Returns the config fields of a short run of real processes."""
  fields: dict[str, Any] = {
    'epochs': 4.0,
    'cluster.timeout_s': 30.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_examples': 1000,
  }
  if context.is_dry:
    fields |= {**_TINY, 'epochs': 1.0}
  return fields | changes


def _recompute(context: Context, folder: pathlib.Path) -> tuple[float, int]:
  """Recomputes a run and compares its parameters.

  Returns:
    The largest difference, and the exit code, which is 1 if the difference
    exceeds rounding.

  Raises:
    RuntimeError: If tools.recompute rejects the run.
  """
  name, group = 'recompute', context.group
  words = ('tools.recompute', str(folder))
  group.start(module_command(name, *words, env=processes.environ()))
  code = group.wait(context.left_s, name)[name]
  match = _DIFFERS.search(group.log(name))
  if not match:
    raise RuntimeError(f'tools.recompute: code {code}: {context.tail(name)}')
  return float(match[1]), code


def _native(context: Context) -> None:
  """Compares a run of one worker with XLA's psum with its recomputation."""
  fields = _real(context, **{'route.name': 'native'})
  folder = processes.launch(context, 'run', fields, workers=1)
  difference, code = _recompute(context, folder)
  within = 'within rounding' if code == 0 else 'beyond rounding'
  detail = f'{difference:.3g}, {within}'
  context.report('recompute', difference if code else 0.0, detail)


def _gpu_and_cpu(context: Context) -> None:
  """Measures the drift of replicas on a GPU and on a CPU."""
  fields = _real(
    context,
    **{
      'route.name': 'ring',
      'cluster.runtime': 'distributed',
      'cluster.workers': 2,
    },
  )
  folder = context.folder / 'run'
  (port,) = roles.free_ports(1)
  names = []
  for worker, platform in enumerate(({}, {'JAX_PLATFORMS': 'cpu'})):
    words = ['bench.gpu.training', f'--workdir={folder}']
    words += [f'--report={folder}.reports', f'--coordinator=127.0.0.1:{port}']
    words += [f'--role=worker:{worker}', *training.flags(fields)]
    names.append(f'worker{worker}')
    env = processes.environ(**platform)
    context.group.start(module_command(names[-1], *words, env=env))
  context.finish(*names)
  summary = json.loads((folder / 'summary.json').read_text())
  drift = summary['drift']
  context.report('drift', drift['largest'], f'{drift["repairs"]} repairs')
  context.report('corrupt', drift['corrupt'])
  digests = {report['digest'] for report in processes.reports(folder)}
  context.report('digests', len(digests) - 1, ' and '.join(sorted(digests)))


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
  fields = _real(
    context, **{'route.name': 'ring', 'model.vgg.width': 0.5, 'epochs': 2.0}
  )
  if context.is_dry:
    fields |= {**_TINY, 'epochs': 0.5}
    del fields['model.vgg.width']
  took: dict[bool, list[float]] = {True: [], False: []}
  exposed: dict[bool, list[float]] = {True: [], False: []}
  for turn, overlap in enumerate((True, False, True)):
    run_fields = {**fields, 'route.overlap': overlap}
    folder = processes.launch(context, f'run{turn}', run_fields, workers=2)
    took[overlap].append(conditions.read_median_s(folder))
    exposed[overlap].append(traffic.longest_epoch(folder).mean('push_s'))
  summary = json.loads((folder / 'summary.json').read_text())
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
  difference, _ = _recompute(context, folder)
  context.report('recompute', difference)


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


def _sweep(context: Context) -> None:
  """Compares a sweep of parallel runs on one device with a sweep of one run."""
  jobs, fields = 4, {'epochs': 1.0}
  if context.is_dry:
    jobs, fields = 2, {**_TINY, 'epochs': 0.2}
  took, programs, finished = {}, {}, 0
  for count in (jobs, 1):
    out = context.folder / f'sweep{count}'
    words = ['sweep', '--config=configs/default.py', f'--out={out}']
    words += [f'--jobs={count}', *training.flags(fields)]
    words += [f'--grid=seed={",".join(map(str, range(count)))}']
    cache, variables = out / 'compiled', dict(_ALL_PROGRAMS)
    if not devices.gpus(os.environ):  # Sweeps share programs only on GPUs.
      cache = context.folder / f'compiled{count}'
      variables['JAX_COMPILATION_CACHE_DIR'] = str(cache)
    name, start = out.name, time.monotonic()
    env = processes.environ(**variables)
    context.group.start(module_command(name, *words, env=env))
    context.group.wait(context.left_s, name)
    took[count] = time.monotonic() - start
    finished += sum(
      json.loads(path.read_text())['ended'] == 'finished'
      for path in out.rglob('summary.json')
    )
    programs[count] = len([*cache.rglob('*-cache')])
  share = finished / (jobs + 1)
  end = '' if share == 1 else context.tail(name)
  context.report('finished', share, end)
  additional = programs[jobs] - programs[1]
  detail = f'{programs[jobs]} of {jobs} runs, {programs[1]} of one'
  is_known = share == 1 and programs[1] > 0
  context.report('compiled again', additional if is_known else math.nan, detail)
  times = f'{took[jobs]:.1f} s of {jobs} runs, {took[1]:.1f} s of one'
  context.report('time', took[jobs] / (jobs * took[1]), times)


def _placement(context: Context) -> None:
  """Counts accelerators that processes start without a need."""
  timing = {
    'model.name': 'none',
    'model.none.num_train': 2048,
    'epochs': 1.0,
  }
  narx = {**timing, 'batching.name': 'lb_bsp'}
  for row, fields in (('timing-only', timing), ('NARX', narx)):
    folder = context.folder / row
    words = ['bench.gpu.training', f'--workdir={folder}']
    words += [f'--report={folder}.reports', *training.flags(fields)]
    processes.run(context, row, words, processes.environ())
    _report_started(context, row, processes.reports(folder))
  fields = _real(context, **_TINY, epochs=1.0)
  folder = processes.launch(
    context, 'servers', fields, workers=1, servers=2, dedicated=True
  )
  roles_of = {
    kind: [
      report
      for report in processes.reports(folder)
      if report['role'].startswith(kind)
    ]
    for kind in ('server', 'worker')
  }
  if not any(_accelerators(report) for report in roles_of['worker']):
    raise RuntimeError('servers: the worker has started no accelerator either')
  _report_started(context, 'servers', roles_of['server'])


def _report_started(
  context: Context, row: str, reports: Sequence[Mapping[str, Any]]
) -> None:
  """Reports the number of accelerators that processes have started."""
  if not reports:
    raise RuntimeError(f'{row}: no process has written a report')
  names = [name for report in reports for name in _accelerators(report)]
  context.report(row, len(names), ', '.join(names))


def _accelerators(report: Mapping[str, Any]) -> list[str]:
  """Returns the accelerators that a process has started."""
  return [
    f'{name} with {arrays} arrays'
    for name, arrays in report['platforms'].items()
    if name != 'cpu'
  ]


def _pytest(context: Context) -> None:
  """Runs the tests that need a GPU."""
  words = ('pytest', '-m', 'gpu', '-p', 'no:cacheprovider')
  command = module_command('pytest', *words, env=processes.environ())
  context.group.start(dataclasses.replace(command, folder=_ROOT))
  code = context.group.wait(context.left_s, 'pytest')['pytest']
  end = context.tail('pytest')
  if 'No module named pytest' in end:
    context.report('failures', None, 'pytest is not installed')
  elif code == _NO_TESTS:
    context.report('failures', None, 'no test has the marker gpu')
  else:
    failures = re.search(r'(\d+) (?:failed|error)', end)
    count = int(failures[1]) if failures else int(code != 0)
    context.report('failures', count, end)


MEASURES: dict[str, Callable[[Context], None]] = {
  **dict.fromkeys(MODELS, _steps),
  'virtual': _virtual,
  'digits': _digits,
  'server': _server,
  'mixed': _gpu_and_cpu,
  'precision': _precision,
  'ring': _ring,
  'sweep': _sweep,
  'native': _native,
  'placement': _placement,
  'pytest': _pytest,
}
