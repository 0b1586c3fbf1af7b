"""Tests for configs/, train.build's checks, and main.py as a user runs it."""

import importlib
import json
import os
import pathlib
import tempfile
import warnings
from unittest import mock

import numpy as np
import pytest
from absl import flags
from absl.testing import absltest, parameterized

import train
from configs import config_file, default, sections
from data.dataset import Dataset, Split
from sync import asp
from tests.support import small

_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp', 'quorum')


def _parse(*flags_of_config):
  """Reads flags as main.py does."""
  values, argv = flags.FlagValues(), ['main.py', *flags_of_config]
  config_file.define_flag(None, '', flag_values=values, argv=argv)
  with warnings.catch_warnings(), sections.reject_unknown_flags(argv):
    # ml_collections loads the file by a deprecated function.
    warnings.filterwarnings('ignore', 'the load_module', DeprecationWarning)
    values(argv)


class FileTest(parameterized.TestCase):
  @parameterized.product(name=_SCHEMES, variant=['digits', 'cifar10'])
  def test_each_scheme_has_a_config(self, name, variant):
    module = importlib.import_module(f'configs.vgg16_{name}')
    config = module.get_config(variant)

    sections.check_fields(config)
    self.assertEqual(config.sync.name, name)
    self.assertEqual(config.data.name, variant)
    self.assertEqual(module.get_config(), module.get_config('digits'))

  @parameterized.product(name=_SCHEMES, other=_SCHEMES)
  def test_each_config_accepts_any_scheme(self, name, other):
    module = importlib.import_module(f'configs.vgg16_{name}')
    config = module.get_config()
    config.sync.name = other
    chosen, own = sections.choose_section(config, 'sync')
    self.assertEqual(chosen, other)
    self.assertEqual(own, default.get_config().sync[other].to_dict())


class CheckTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {
        'cluster__hosts_per_worker': 2,
        'cluster__speed__slowdown': (1.0, 1.0),
      },
      'slowdown: expected one value for all, such as .* of 3, got',
    ),
    *(
      (
        {'cluster__runtime': 'distributed', **fields},
        f'config.cluster.{message}',
      )
      for fields, message in (
        (
          {'cluster__hosts_per_worker': 3},
          'hosts_per_worker: expected a power of two, .* got 3',
        ),
        (
          {'cluster__hosts_per_worker': 256},
          'hosts_per_worker: .* up to config.batching.micro_batch, 128, .* 256',
        ),
        (
          {'cluster__hosts_per_worker': 2, 'route__name': 'native'},
          "hosts_per_worker: expected 1, as config.route.name is 'native'",
        ),
        (
          {'cluster__hosts_per_worker': 2, 'cluster__workers_per_gpu': 2},
          'workers_per_gpu: expected 1, as .*hosts_per_worker is 2',
        ),
        (
          {'cluster__island_sharding': 'fsdp'},
          "island_sharding: expected 'replicated', .* is 1, got 'fsdp'",
        ),
      )
    ),
    ({'sync__name': 'elastc'}, r"config.sync.name: .* got 'elastc'"),
    (
      {'sync__name': 'asp', 'sync__ssp__bound': 5},
      "config.sync.ssp.bound: 5 is ignored by config.sync.name='asp'; remove "
      "it, or choose 'ssp'",
    ),
    (
      {'sync__name': 'quorum', 'sync__quorum__minimum': 99},
      r'config.sync.quorum.minimum: expected at most .* workers, got 99',
    ),
    ({'data__name': 'mnist'}, r"config.data.name: expected one of .* 'mnist'"),
    ({'sync__ssp__bound': 2}, r'config.sync.ssp.bound: 2 is ignored by'),
    ({'batching__name': 'even'}, r"config.batching.name: .*'fixed'.*even"),
    ({'wire__name': 'half'}, r"config.wire.name: .*'dense'.* got 'half'"),
    ({'route__name': 'rings'}, r"config.route.name: .*'ring'.* got 'rings'"),
    (
      {'cluster__workers': 500, 'cluster__speed__slowdown': (1.0,)},
      r'config.cluster.workers: expected at most 192, .* of an epoch, got 500',
    ),
    (
      {'batching__name': 'lb_bsp', 'batching__lb_bsp__least': 5000},
      r'config.batching.lb_bsp.least: expected at most 8, .* got 5000',
    ),
    (
      {'cluster__min_workers': 4},
      r'config.cluster.min_workers: expected 0 to .*workers, 3, got 4',
    ),
    (
      {'cluster__min_workers': 2},
      r"cluster.min_workers: .* because config.cluster.runtime is 'virtual'",
    ),
    ({'batching__worker_batch': 500}, r'config.batching.worker_batch: .* 192'),
    ({'batching__micro_batch': 48}, r'config.batching.micro_batch: .* got 48'),
    (
      {'cluster__speed__slowdown': (1.0, 2.0)},
      r'speed.slowdown: .* such as \(1.0,\), or one for each of 3',
    ),
    (
      {'cluster__script': ((1.0, 'die', 0),)},
      r"config.cluster.script: .* got \(1.0, 'die', 0\)",
    ),
    (
      {'cluster__script': ((1.0, 'leave', 3),)},
      r"config.cluster.script: .* got \(1.0, 'leave', 3\)",
    ),
    (
      {'cluster__script': ((1.0, 'join', 0),)},
      r"config.cluster.script: worker 0 is alive at 1.0 s, got \(1.0, 'join'",
    ),
    (
      {'cluster__script': ((1.0, 'leave'),)},
      r"config.cluster.script: expected .* got \(1.0, 'leave'\)",
    ),
    (
      {'optimizer__reduction': 'barrier_mean'},
      r"reduction: expected 'mean', as every update of Bsp is of a barrier, ",
    ),
    (
      {'optimizer__reduction': 'barrier_mean', 'sync__name': 'ssp'},
      r"reduction: expected 'sum' or 'mean', as no update of Ssp is of several",
    ),
    (
      {'schedule__name': 'step', 'schedule__step__epochs': (2.0, 1.0)},
      r'config.schedule.step.epochs: expected increasing',
    ),
    (
      {'cluster__script': (('soon', 'leave', 1),)},
      r"config.cluster.script: expected .* got \('soon', 'leave', 1\)",
    ),
    (
      {'optimizer__name': 'muon', 'wire__name': 'sparse'},
      r"config.wire.sparse.correction: expected 'none', .* got 'masked'",
    ),
    ({'cluster__script': (1.0, 'leave', 1)}, r'config.cluster.script: '),
    ({'schedule__step__epochs': (1.0,)}, r'config.schedule.step.epochs: .*ign'),
    ({'eval_top': 10}, r'config.eval_top: expected 0, or 2 to 9, got 10'),
    (
      {'route__name': 'ring', 'route__lanes': 2},
      r"config.route.lanes: .* because config.cluster.runtime is 'virtual'",
    ),
    ({'epochs': 1e-6}, r'config.epochs: expected at least one example'),
    (
      {'optimizer__sgd__nesterov': True},
      r'config.optimizer.sgd.nesterov: expected False without momentum',
    ),
    (
      {'model__name': 'vgg'},
      r'config.model.mlp.hidden: .* is ignored by',
    ),
  )
  def test_invalid_values_are_rejected_before_a_run(self, changed, message):
    config = small.config(**changed)
    workdir = tempfile.mkdtemp() + '/run'
    with self.assertRaisesRegex(ValueError, message):
      train.build(config, workdir=workdir)
    self.assertFalse(os.path.exists(workdir))

  def test_unknown_fields_are_rejected_by_name(self):
    config = default.get_config()
    with self.assertRaisesRegex(AttributeError, 'bond'):
      config.sync.ssp.bond = 5
    with config.unlocked():
      config.sync.ssp.bond = 5
    with self.assertRaisesRegex(ValueError, 'config.sync.ssp.bond: unknown'):
      train.build(config)

  def test_missing_fields_are_rejected_by_name(self):
    config = default.get_config()
    with config.unlocked():
      del config.sync.ssp.bound
    with self.assertRaisesRegex(ValueError, 'config.sync.ssp.bound: missing'):
      train.build(config)

  def test_wrong_types_are_rejected_by_name(self):
    config = default.get_config()
    with self.assertRaisesRegex(TypeError, 'bound'):
      config.sync.ssp.bound = 'three'
    with config.ignore_type():
      config.sync.ssp.bound = 'three'
    with self.assertRaisesRegex(
      ValueError, "config.sync.ssp.bound: expected an integer .* got 'three'"
    ):
      train.build(config)

  @parameterized.parameters('SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE')
  def test_a_virtual_run_of_several_tasks_is_rejected(self, variable):
    with (
      mock.patch.dict(os.environ, {variable: '4'}),
      self.assertRaisesRegex(ValueError, f'config.cluster.runtime.*{variable}'),
    ):
      train.build(small.config())

  def test_the_folder_of_another_run_is_rejected(self):
    run = small.build(small.config(epochs=0.2))
    run()
    message = 'config.epochs: expected 0.2, as in '
    with self.assertRaisesRegex(ValueError, message):
      train.build(small.config(), workdir=str(run.files.workdir))
    with self.assertRaisesRegex(RuntimeError, 'runs once'):
      run()

  def test_a_folder_whose_path_is_a_file_is_rejected_by_name(self):
    with tempfile.NamedTemporaryFile() as file:
      for workdir in (file.name, file.name + '/run'):
        with self.assertRaisesRegex(
          ValueError, f"workdir: expected a folder, got '{workdir}', which is"
        ):
          train.build(small.config(), workdir=workdir)
    with self.assertRaisesRegex(ValueError, 'workdir: expected the path'):
      train.build(small.config(), workdir='')


class TimingTest(parameterized.TestCase):
  """Tests of runs without a model."""

  def test_runs_without_a_model_take_the_times_of_runs_with_one(self):
    for scheme in ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp'):
      own = {'sync__name': scheme, 'cluster__speed__name': 'lognormal'}
      own['cluster__network__server_up_Bps'] = (1e6,)
      learned = small.build(small.config(**own))
      size_bytes = small.size_bytes(learned)
      timed = small.build(small.timing(size_bytes=size_bytes, **own))
      summaries = learned(), timed()
      for name in ('virtual_s', 'bytes', 'staleness', 'worker_seconds'):
        self.assertEqual(*[summary[name] for summary in summaries])
      self.assertIsNone(summaries[1]['final_accuracy'])
      rows = [small.rows(run, 'events.jsonl') for run in (learned, timed)]
      self.assertEqual(*rows)

  def test_runs_without_a_model_resume_from_a_checkpoint(self):
    config = small.timing(checkpoint__every_examples=96)
    straight = small.build(config)
    straight()
    folder = straight.files.workdir
    (folder / 'summary.json').unlink()
    run = train.build(config, workdir=str(folder))
    self.assertIsNotNone(run.sizes)
    self.assertEqual(run()['ended'], 'finished')


class ReplacedTest(parameterized.TestCase):
  """Tests of schemes, tasks and data sets of the caller."""

  @parameterized.parameters(
    ('scheme', {'sync.name': 'asp'}),
    ('scheme', {'sync.ssp.bound': 5}),
    ('task', {'model.name': 'mlp'}),
    ('task', {'data.flip': True}),
    ('dataset', {'data.name': 'synthetic'}),
    ('dataset', {'data.synthetic.pixels': 8}),
  )
  def test_replaced_fields_must_have_their_defaults(self, part, changed):
    config = default.get_config()
    config.update_from_flattened_dict(changed)
    message = f'config.{min(changed)}: .* because there is a {part} of its own'
    with self.assertRaisesRegex(ValueError, message):
      small.build(config, **{part: mock.Mock()})

  def test_a_task_is_rejected_in_a_run_without_a_model(self):
    config = default.get_config()
    config.model.name = 'none'
    with self.assertRaisesRegex(ValueError, 'config.model.name: .* the task'):
      small.build(config, task=mock.Mock())

  @parameterized.parameters(
    (0, 0, 'test: expected as many .* got 0 inputs and 0'),
    (5, 4, 'test: expected as many .* got 5 inputs and 4'),
  )
  def test_splits_with_missing_rows_are_rejected(
    self, inputs, targets, message
  ):
    split = Split(np.zeros((inputs, 2)), np.zeros(targets, np.int32))
    full = Split(np.zeros((200, 2)), np.zeros(200, np.int32))
    with self.assertRaisesRegex(ValueError, message):
      small.build(default.get_config(), dataset=Dataset(full, split))

  @parameterized.parameters((2, r'got \(0, 1\)'), (4, r'got .* 3\)'))
  def test_a_scheme_for_other_workers_is_rejected(self, num_workers, message):
    own = asp.make(num_workers=num_workers)
    run = small.build(small.config(), scheme=own)
    with self.assertRaisesRegex(ValueError, f'scheme: .* all 3 .*{message}'):
      run()

  def test_a_scheme_can_be_used_in_several_runs(self):
    own = asp.make(num_workers=3)
    config = small.config()
    summaries = [small.build(config, scheme=own)() for _ in range(2)]
    self.assertEqual(summaries[0]['virtual_s'], summaries[1]['virtual_s'])


class MainTest(parameterized.TestCase):
  """Tests of main.py in a process of its own."""

  def _main(self, *flags):
    return small.python('main.py', *flags)

  def test_flags_change_any_field_of_any_file(self):
    workdir = tempfile.mkdtemp() + '/run'
    process = self._main(
      '--config=configs/vgg16_elastic.py',
      f'--workdir={workdir}',
      '--config.sync.name=ssp',
      '--config.sync.ssp.bound=1',
      '--config.model.name=mlp',
      '--config.epochs=3',
      '--config.cluster.workers=2',
      '--config.cluster.speed.slowdown=(1.0, 2.0)',
      "--config.cluster.script=((1.0, 'leave', 1), (1.5, 'join', 1))",
    )

    self.assertEqual(process.returncode, 0, process.stderr)
    files = pathlib.Path(workdir)
    summary = json.loads((files / 'summary.json').read_text())
    self.assertGreater(summary['final_accuracy'], 0.6)
    self.assertEqual(summary['compilations'], 0)
    self.assertGreaterEqual(summary['examples'], 3 * 1437)
    for key in ('virtual_s', 'wall_s', 'iterations', 'updates', 'bytes'):
      self.assertGreater(summary[key], 0)
    self.assertEqual(sorted(summary['time_to']), ['0.9', '0.95'])
    manifest = json.loads((files / 'manifest.json').read_text())
    self.assertEqual(manifest['config']['sync']['ssp']['bound'], 1)
    self.assertIn('ssp', process.stdout)  # The table.
    self.assertIn('accuracy', process.stderr)  # The log.
    self.assertNotIn('Traceback', process.stderr)

  def test_invalid_flags_end_with_a_message_and_no_files(self):
    self._check_rejected(
      '--config.sync.ssp.bond=3',
      'Refused: config.sync.ssp.bond: unknown; '
      'did you mean config.sync.ssp.bound?\n',
    )

  @parameterized.parameters(
    ('config.optimizer.learnig_rate = 3.0', 'learning_rate'),
    ("config.optimiser.name = 'sgd'", 'optimizer'),
  )
  def test_a_wrong_line_of_a_config_file_is_named(self, line, meant):
    path = pathlib.Path(tempfile.mkdtemp(), 'own.py')
    path.write_text(
      'from configs import default\n\n'
      f'def get_config():\n  config = default.get_config()\n  {line}\n'
      '  return config\n'
    )
    with self.assertRaisesRegex(SystemExit, '^Refused: ') as found:
      _parse(f'--config={path}')
    self.assertIn(f'{path}, line 5 ({line}): ', str(found.exception))
    self.assertIn(f'unknown; did you mean {meant}?', str(found.exception))
    self.assertLess(len(str(found.exception)), 400)

  @parameterized.parameters(
    ('sync.sssp=3', 'config.sync.sssp: unknown; did you mean config.sync.ssp?'),
    ('snc.name=bsp', 'config.snc: unknown; did you mean config.sync?'),
    ('x=1', 'config.x: unknown; --help_fields= prints all fields.'),
  )
  def test_a_flag_of_an_unknown_field_is_named_alone(self, flag, message):
    with self.assertRaises(SystemExit) as found:
      _parse(
        '--config=configs/vgg16_bsp.py',
        '--config.time_to=(0.5,\n0.6)',
        f'--config.{flag}',
      )
    self.assertEqual(str(found.exception), f'Refused: {message}')

  @parameterized.parameters('--config={}', '--config={}:digits')
  def test_a_config_file_that_is_missing_is_named(self, flag):
    file = '/no/such/own.py'
    with self.assertRaisesRegex(
      SystemExit, f"^Refused: --config: expected a file.*'{file}'.*not exist"
    ):
      _parse(flag.format(file))

  def test_a_command_without_config_shows_an_example(self):
    process = self._main()
    self.assertNotEqual(process.returncode, 0)
    self.assertIn('--config=configs/vgg16_bsp.py', process.stderr)

  def test_an_error_of_a_config_file_is_no_unknown_field(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'own.py')
    path.write_text("def get_config():\n  return {}['own']\n")
    with self.assertRaisesRegex(KeyError, 'own'):
      _parse(f'--config={path}')

  @parameterized.parameters(
    ('--config.sync.ssp.bound=many', 'config.sync.ssp.bound'),
    ('--config.data.name=cifar10', 'config.data.dir'),
  )
  @pytest.mark.soak
  def test_other_invalid_flags_end_with_a_message(self, flag, message):
    self._check_rejected(flag, message)

  def _check_rejected(self, flag, message):
    workdir = tempfile.mkdtemp() + '/run'
    process = self._main(
      '--config=configs/vgg16_bsp.py', f'--workdir={workdir}', flag
    )
    self.assertNotEqual(process.returncode, 0)
    self.assertIn(message, process.stdout + process.stderr)
    self.assertNotIn('Traceback', process.stderr)
    self.assertFalse(os.path.exists(workdir))


if __name__ == '__main__':
  absltest.main()
