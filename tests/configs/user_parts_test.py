"""Tests for parts of the user's own, which configs name by dotted path."""

import contextlib
import functools
import io
import json
import pathlib
import sys
import tempfile
import textwrap

import jax
import numpy as np
import rich.console
from absl.testing import absltest, parameterized

import analysis
import train
from analysis import diagnosing, recorded_configs, report
from analysis.watching.page import Page
from configs import default, sections
from outputs import inputs, manifests
from sweeps import plan
from tests.support import small, together
from tools import compare, replay
from tuning import candidates

_SCHEME = """
import dataclasses

from sync import scheme
from sync.scheme import Decision


@dataclasses.dataclass
class KAsync:
  is_state = True
  k: int
  members: scheme.Members
  pushed: int = 0
  updates: int = 0

  def start(self, time):
    return Decision(release=self.members.release_all())

  def push(self, push):
    self.members.stop(push.worker)
    self.pushed += 1
    return self._update(Decision(into=self.updates))

  def wake(self, time):
    return Decision()

  def leave(self, worker, time):
    self.members.leave(worker)
    return self._update(Decision())

  def join(self, worker, time):
    self.members.join(worker)
    return Decision(release=self.members.release((worker,)))

  def _update(self, decision):
    if not self.pushed or (self.pushed < self.k and self.members.running):
      return decision
    self.pushed, self.updates = 0, self.updates + 1
    release = self.members.release_all()
    return decision._replace(commit=(self.updates - 1,), release=release)


def make(*, num_workers, k, slack=0.5, label='x', sizes=(1, 2)):
  if k < 1:
    raise ValueError(f'k: expected at least 1, got {k}.')
  return KAsync(k=k, members=scheme.make_members(num_workers))
"""


_FOLDERS = [pathlib.Path(tempfile.mkdtemp())]
sys.path.append(str(_FOLDERS[0]))


def _write(text: str) -> str:
  """Writes a module; returns its dotted path, which no other test has."""
  package = f'lab_{len(list(_FOLDERS[0].iterdir()))}'
  path = _FOLDERS[0] / package / 'part.py'
  path.parent.mkdir()
  path.write_text(textwrap.dedent(text))
  return f'{package}.part'


def _config(name, section='sync', own=(), **changed):
  config = small.config(**changed)
  part = functools.reduce(
    lambda node, key: node[key], section.split('.'), config
  )
  part.name = name
  for field, value in dict(own).items():
    part.own[field] = value
  return config


class FieldsTest(parameterized.TestCase):
  def test_the_fields_are_the_arguments_that_the_program_does_not_supply(self):
    name = _write(_SCHEME)
    resolved = sections.resolve_own(_config(name, own={'k': 2, 'slack': 1}))
    self.assertEqual(
      resolved.sync.own.to_dict(),
      {'k': 2, 'slack': 1.0, 'label': 'x', 'sizes': (1, 2)},
    )
    self.assertEqual(sections.resolve_own(resolved), resolved)

  @parameterized.parameters(
    ({}, r'own\.k: expected a value: it has no default'),
    ({'k': 0}, r'own\.k: expected at least 1, got 0'),
    ({'k': None}, r'own\.k: expected a number, text, or a tuple of numbers'),
    ({'k': 2, 'kk': 2}, r"own\.kk: unknown; .* \['k', 'label', 'sizes'"),
    ({'k': 2, 'slack': 'a'}, r"own\.slack: expected a number, got 'a'"),
    ({'k': 2, 'label': 3}, r'own\.label: expected text, got 3'),
    ({'k': 2, 'sizes': 3}, r'own\.sizes: expected a tuple of numbers, got 3'),
  )
  def test_fields_are_checked_like_those_of_other_parts(self, own, message):
    config = _config(_write(_SCHEME), own=own)
    with self.assertRaisesRegex(ValueError, rf'^config\.sync\.{message}'):
      train.check(config)

  def test_flags_set_the_fields(self):
    config = plan.parse_config(
      [
        '--config=configs/vgg16_bsp.py',
        '--config.sync.name=my_lab.backup',
        '--config.sync.own.k=2',
        '--config.sync.own.sizes=(3, 4)',
        '--config.sync.own.label=slow',
        '--config.batching.lb_bsp.predictor.own.window=1.5',
      ]
    )
    self.assertEqual(
      config.sync.own.to_dict(), {'k': 2, 'sizes': (3, 4), 'label': 'slow'}
    )
    own = config.batching.lb_bsp.predictor.own
    self.assertEqual(own.to_dict(), {'window': 1.5})

  @parameterized.parameters(
    ('a.b.c', 'expected a module on PYTHONPATH or in the current folder'),
    ('models.mine', "'models' is a package of Syncopate: give yours another"),
    ('my lab/backup.py', 'expected the dotted path of a module, such as'),
    ('own', 'expected one of .* A module of your own has a dotted path'),
    ('record', 'sync/record.py exists, but configs/fields/ has no section'),
  )
  def test_a_name_without_a_module_is_refused(self, name, message):
    with self.assertRaisesRegex(
      ValueError, rf'^config\.sync\.name: .*{message}'
    ):
      train.check(_config(name))

  def test_fields_without_a_part_of_ones_own_are_refused(self):
    with self.assertRaisesRegex(
      ValueError, r"config\.sync\.own: expected no fields, .*'bsp'"
    ):
      train.check(_config('bsp', own={'k': 2}))

  def test_make_must_take_what_the_program_supplies(self):
    name = _write('def make(*, seed): pass')
    message = r'config\.model\.name: expected .*make\(\*, input_shape, num_cl'
    with self.assertRaisesRegex(ValueError, message):
      train.check(_config(name, 'model'))
    name = _write('def make(*, num_workers, path=None): pass')
    message = 'as the default of the argument path of .*make, got None'
    with self.assertRaisesRegex(ValueError, message):
      train.check(_config(name))
    with self.assertRaisesRegex(ValueError, 'a module with a function make'):
      train.check(_config(_write('made = 1')))

  def test_errors_of_the_users_own_code_are_raised_with_their_traceback(self):
    with self.assertRaises(ModuleNotFoundError) as found:
      train.check(_config(_write('import absent_package')))
    self.assertEqual(found.exception.name, 'absent_package')
    with self.assertRaises(ImportError) as found:
      train.check(_config(_write("int('x')")))
    self.assertIsInstance(found.exception.__cause__, ValueError)
    name = _write("def make(*, num_workers): return int('x')")
    with self.assertRaisesRegex(RuntimeError, 'make failed') as found:
      train.check(_config(name))
    self.assertIsInstance(found.exception.__cause__, ValueError)

  def test_a_state_that_no_checkpoint_can_hold_is_refused_at_the_start(self):
    name = _write(_SCHEME.replace('  is_state = True\n', ''))
    with self.assertRaisesRegex(
      ValueError, rf'^config\.sync\.name: {name}: expected plain data'
    ):
      train.check(_config(name, own={'k': 2}))


class IdentityTest(absltest.TestCase):
  def test_the_source_of_a_module_is_part_of_a_runs_identity(self):
    own = dict.fromkeys(('scheme', 'task', 'dataset'))
    found = set()
    for text in (_SCHEME, _SCHEME + '\n', _SCHEME):
      name = _write(text)
      config = sections.resolve_own(_config(name, own={'k': 2})).to_dict()
      described = manifests.described(config, own)
      file = described['files']['config.sync.name']
      self.assertEqual(pathlib.Path(file['path']).read_text(), text)
      found.add((file['digest'], manifests.fingerprint(described)))
    digests, prints = zip(*found, strict=True)
    # The third module has the name of none, and the content of the first.
    self.assertLen(set(digests), 2)
    self.assertLen(set(prints), 3)

  def test_the_manifest_of_a_run_without_own_parts_has_no_trace_of_them(self):
    config = default.get_config().to_dict()
    described = manifests.described(config, {})
    for section in ('sync', 'batching', 'wire', 'route', 'model', 'data'):
      self.assertNotIn('own', described['config'][section])
    self.assertEqual(inputs.digests(config), described['files'])


class RunTest(absltest.TestCase):
  def test_a_run_resumes_and_is_replayed_with_the_module_that_began_it(self):
    name = _write(_SCHEME)
    config = _config(
      name, own={'k': 2}, checkpoint__every_examples=64, epochs=1.0
    )
    run = small.build(config)
    first = run()
    folder = run.files.workdir
    config.epochs = 2.0
    summary = train.build(config, workdir=str(folder))()
    self.assertGreater(summary['updates'], first['updates'])
    fields = analysis.read(folder).config['sync']['own']
    self.assertEqual(fields['sizes'], [1, 2])
    for recorded, replayed in replay.pairs(folder):
      self.assertEqual(recorded, replayed)
    self.assertNotEmpty(diagnosing.diagnose_run(analysis.read(folder)))

    # Another process has not imported the module.
    module = sys.modules.pop(name)
    message = f'is not imported because a file names it; .*--own={name}'
    with self.assertRaisesRegex(ValueError, message):
      list(replay.pairs(folder))
    with self.assertRaisesRegex(ValueError, message):
      recorded_configs.restore_config(folder)
    self.assertNotIn(name, sys.modules)
    self.assertNotEmpty(diagnosing.diagnose_run(analysis.read(folder)))

    source = pathlib.Path(module.__file__)
    source.write_text(source.read_text() + '\n')
    config.epochs = 3.0
    with self.assertRaisesRegex(
      ValueError, rf'config\.sync\.name: expected the content that {source} had'
    ):
      train.build(config, workdir=str(folder))

  def test_processes_of_a_real_run_use_it(self):
    config = _config(
      _write(_SCHEME),
      own={'k': 1},
      epochs=0.5,
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
    )
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    together.run(config, folder)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['ended'], 'finished')

  def test_a_sweep_a_comparison_and_tuning_take_it(self):
    name = _write(_SCHEME)
    variants = compare.find_variants(['bsp', name])
    self.assertEqual(variants[-1].scheme, name)
    config = _config(name, own={'k': 2})
    runs = compare.plan_comparison(
      config, {'sync.own.k': '2'}, variants=variants, seeds=1
    )
    points = {run.point['sync.name']: dict(run.point) for run in runs}
    self.assertEqual(points[name]['sync.own.k'], '2')
    self.assertNotIn('sync.own.k', points['bsp'])
    candidates.check_present(config, 3)
    changed = candidates.measuring_config(config)
    self.assertEqual(
      (changed.sync.name, changed.sync.own.to_dict()), ('bsp', {})
    )


class OtherPartsTest(absltest.TestCase):
  def test_a_wire_a_route_a_batching_and_a_predictor_are_taken(self):
    wire = _write(
      """
      from wire import dense

      def make(*, kind='float32'):
        return dense.make(dtype=kind)
      """
    )
    route = _write(
      """
      from route import server

      def make(*, servers=1):
        return server.make(
          servers=servers, dedicated=False, pipelined=False, mirror_s=30.0
        )
      """
    )
    batching = _write(
      """
      from batching import fixed

      def make(*, num_workers, worker_batch, factor=1):
        return fixed.make(
          num_workers=num_workers, worker_batch=factor * worker_batch
        )
      """
    )
    predictor = _write(
      """
      from predict import ema

      def make(*, num_workers, num_factors, seed, smoothing=0.5):
        return ema.make(
          num_workers=num_workers,
          num_factors=num_factors,
          seed=seed,
          smoothing=smoothing,
        )
      """
    )
    config = _config(wire, 'wire')
    config.route.name, config.batching.name = route, batching
    run = small.build(config)
    usual = small.build(small.config())
    self.assertEqual(run()['virtual_s'], usual()['virtual_s'])
    params = [
      jax.tree.leaves(each.runtime.coordinator.store.learner.params)
      for each in (run, usual)
    ]
    for own, ours in zip(*params, strict=True):
      np.testing.assert_array_equal(own, ours)
    config = _config(predictor, 'batching.lb_bsp.predictor')
    config.batching.name = 'lb_bsp'
    self.assertEqual(small.build(config)()['ended'], 'finished')


_TASK = """
import jax.numpy as jnp
import optax
from flax import nnx

from models import task


class Net(nnx.Module):
  def __init__(self, size, width, rngs):
    self.hidden = nnx.Linear(size, width, rngs=rngs)
    self.last = nnx.Linear(width, 1, rngs=rngs)

  def __call__(self, inputs, *, rngs=None):
    return self.last(nnx.tanh(self.hidden(inputs)))[:, 0]


def make(*, input_shape, num_classes, seed, dtype, width=8, tolerance=0.1):
  return task.supervised(
    Net(*input_shape, width, nnx.Rngs(seed)),
    loss=optax.squared_error,
    others={
      'mse': optax.squared_error,
      'met': lambda outputs, targets: jnp.abs(outputs - targets) < tolerance,
    },
    primary='mse',
    falling=('mse',),
  )
"""
_DATA = """
import numpy as np

from data.dataset import Dataset, Split


def make(*, directory, slope=0.5):
  inputs = np.random.default_rng(0).normal(size=(256, 2)).astype(np.float32)
  targets = slope * inputs.sum(axis=1)
  return Dataset(
    train=Split(inputs[:192], targets[:192]),
    test=Split(inputs[192:], targets[192:]),
  )
"""


def _regression(scheme='bsp', own=(), **changed):
  defaults = default.get_config().data.synthetic
  changed = {f'data__synthetic__{k}': v for k, v in defaults.items()} | changed
  config = _config(scheme, own=own, **changed)
  config.model.mlp.hidden = default.get_config().model.mlp.hidden
  config.model.name, config.data.name = _write(_TASK), _write(_DATA)
  config.model.own.width = 16
  return config


class OwnTaskTest(parameterized.TestCase):
  def test_a_measure_of_ones_own_is_shown_in_all_places(self):
    config = _regression(epochs=30.0)
    config.time_to_measure.mse, config.time_to_measure.met = (0.1,), (0.3, 2.0)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), self.assertLogs() as logs:
      run = small.build(config)
      run.console._console.file = printed
      summary = run()
    record = analysis.read(run.files.workdir)
    self.assertEqual(record.measures, {'mse': 'falls', 'met': 'rises'})
    rows = [row for row in record.rows if row['kind'] == 'evaluation']
    self.assertLess(rows[-1]['mse'], 0.5 * rows[0]['mse'])
    self.assertIsNone(rows[-1]['accuracy'])
    first = next(row for row in rows if row['mse'] <= 0.1)
    self.assertEqual(summary['to_mse']['0.1']['time_s'], first['time'])
    first = next(row for row in rows if row['met'] >= 0.3)
    self.assertEqual(summary['to_met']['0.3']['time_s'], first['time'])
    self.assertIsNone(summary['to_met']['2.0']['time_s'])
    self.assertEqual((summary['time_to'], summary['to_accuracy']), ({}, {}))
    self.assertIsNone(summary['final_accuracy'])

    shown = f'mse {summary["final_mse"]:.4g}'
    self.assertIn(shown, '\n'.join(logs.output))
    reached = f'{summary["to_mse"]["0.1"]["time_s"]:.2f}'
    table = printed.getvalue()
    self.assertRegex(table, rf'│ time to mse 0.1 +│ +{reached} │')
    self.assertNotIn('accuracy', table)

    page = io.StringIO()
    rich.console.Console(file=page, width=80).print(
      Page(run.files.workdir).render()
    )
    self.assertIn(shown, page.getvalue())
    cells = compare.row([summary], record.measures)
    self.assertEqual(next(iter(cells)), 'mse')
    self.assertIn('to mse 0.1 (s)', cells)
    out = tempfile.mkdtemp()
    content = report.read([run.files.workdir])
    text = report.write_page(content, out).read_text()
    self.assertIn('Mse on the test split; lower is better.', text)
    self.assertIn('Met on the test split; higher is better.', text)
    self.assertNotIn('ccuracy', text)

  @parameterized.parameters(
    (
      {'time_to_measure__mae': (1.0,)},
      r"time_to_measure.mae: expected one of .* \['mse', 'met'\]",
    ),
    (
      {'time_to_measure__accuracy': (0.5,)},
      'time_to_measure.accuracy: expected config.time_to, which',
    ),
    (
      {'time_to': (0.5,)},
      r"time_to: expected the default, .* \['mse', 'met'\], but no accuracy; "
      'set config.time_to_measure.mse',
    ),
  )
  def test_a_threshold_of_a_measure_that_a_task_lacks(self, changed, message):
    with self.assertRaisesRegex(ValueError, rf'^config\.{message}'):
      small.build(_regression(**changed))

  @parameterized.parameters(
    ("primary='mse',", '', r"task.primary: .* \['mse', 'met'\], .* 'accuracy'"),
    ("falling=('mse',)", "falling=('mae',)", "task.falling: .* 'mae'"),
    ("'met'", "'loss'", "names of measures, .*, got 'loss'"),
  )
  def test_a_task_whose_measures_are_wrong(self, text, other, message):
    config = _regression()
    config.model.name = _write(_TASK.replace(text, other))
    with self.assertRaisesRegex(ValueError, message):
      small.build(config)

  def test_a_measure_that_is_not_finite_ends_the_run(self):
    config = _regression()
    measured = "'mse': lambda *pair: optax.squared_error(*pair) / 0"
    text = _TASK.replace("'mse': optax.squared_error", measured)
    config.model.name = _write(text)
    run = small.build(config)
    with self.assertRaisesRegex(FloatingPointError, 'measure mse is inf'):
      run()
    self.assertRegex(
      analysis.read(run.files.workdir).ended, 'FloatingPointError'
    )

  def test_fields_that_a_task_would_ignore_are_refused(self):
    config = _regression()
    config.eval_loss = True
    with self.assertRaisesRegex(ValueError, 'config.eval_loss: .* a Task'):
      small.build(config)
    config = _regression()
    config.model.name = _write(
      'def make(*, input_shape, num_classes, seed, dtype): return 3'
    )
    config.model.own = {}
    with self.assertRaisesRegex(
      ValueError, r'config\.model\.name: expected .* got .builtins\.int'
    ):
      small.build(config)

  def test_an_own_scheme_an_own_loss_and_own_data_run_on_real_processes(self):
    config = _regression(
      _write(_SCHEME),
      own={'k': 1},
      epochs=1.0,
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
    )
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    config.time_to_measure.mse = (100.0,)
    together.run(config, folder)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['ended'], 'finished')
    self.assertIsNotNone(summary['to_mse']['100.0']['time_s'])
    self.assertGreater(summary['final_mse'], 0)


if __name__ == '__main__':
  absltest.main()
