"""Tests of what runs on accelerators: gradients, evaluations, replicas.

Whole runs, with the fake accelerator of `tests/support`, which records all that
was ever placed on it.
"""

import pathlib
import tempfile

from absl.testing import absltest, parameterized

from tests.support import accelerators, processes, small

# Programs of workers: the gradient, its random key, its message, pulls.
_OF_WORKERS = {
  *('jit_part', 'jit_stage', 'jit__threefry_seed'),
  *('jit__init', 'jit__encode', 'jit__decode_pulls'),
}
_OF_EVALUATIONS = {'jit_sum_measures', 'jit_is_finite', 'jit__join'}
# Programs of a replica, which updates its parameters: optimizer and copies.
_OF_REPLICAS = {
  *('jit_part', 'jit_stage', 'jit__threefry_seed'),
  *('jit_init_fn', 'jit_apply', 'jit__lambda'),
}
# Programs of a server: the optimizer, sums of pushes, and messages.
_OF_SERVERS = {
  *('jit_init_fn', 'jit_apply', 'jit_add_trees'),
  *('jit__decode', 'jit__encode_pull'),
}
_PREDICTOR = 'jit__fit_and_predict'
_INITIAL = 'jit__truncated_normal'  # Draws parameters.


def _config(kind, **fields):
  """Returns a new config file: small.KIND(**fields)."""
  path = pathlib.Path(tempfile.mkdtemp(), 'config.py')
  path.write_text(
    'from tests.support import small\n\n'
    f'def get_config():\n  return small.{kind}(**{fields!r})\n'
  )
  return path


class _TestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def _main(self, kind, *, platforms='', **fields):
    """Returns the record of a whole virtual run."""
    done = small.python(
      'main.py',
      f'--config={_config(kind, **fields)}',
      f'--workdir={self.folder}/run',
      **accelerators.environment(self.folder / 'record', platforms=platforms),
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    (record,) = accelerators.records(self.folder / 'record')
    return record

  def _launch(self, *, platforms='', **fields):
    """Returns the records of a real run by role, and the launch, ended."""
    folder = self.folder / 'record'
    environ = accelerators.environment(folder, platforms=platforms)
    with processes.launch(workers=2, environ=environ, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    found = {}
    for record in accelerators.records(folder):
      roles = [w for w in record.argv if w.startswith('--role=')]
      for role in roles:
        found.setdefault(role.removeprefix('--role='), []).append(record)
    self.assertEqual(launch.summary['late_compilations'], 0)
    self.assertEqual(launch.summary['compilations'], 0)
    return found, launch


class VirtualTest(_TestCase):
  def test_predictors_and_initial_parameters_are_on_the_cpu(self):
    record = self._main(
      'config',
      sync__name='elastic',
      batching__name='lb_bsp',
      platforms='fake',
    )
    cpu, fake = record.clients['cpu'], record.clients['fake']
    for name in (_PREDICTOR, _INITIAL):
      self.assertIn(name, cpu.computations)
      self.assertNotIn(name, fake.computations)
    for name in ('jit_part', 'jit_apply', 'jit_sum_measures'):
      self.assertIn(name, fake.computations)
      self.assertNotIn(name, cpu.computations)

  def test_without_a_model_no_accelerator_starts(self):
    record = self._main('timing', batching__name='lb_bsp')
    self.assertEqual(set(record.clients), {'cpu'})
    self.assertIn(_PREDICTOR, record.clients['cpu'].computations)


class ServerTest(_TestCase):
  def test_servers_are_on_the_cpu_beside_workers_that_are_not(self):
    """Also after a restart, which restores their shares from a checkpoint."""
    found, launch = self._launch(
      servers=2,
      platforms='fake',
      checkpoint__every_examples=48,
      cluster__faults=(('server:1', 1, 'die', 'checkpoint'),),
      route__server__mirror_s=0.0,  # Else the others continue.
      epochs=8.0,
    )
    self.assertLen(found['worker:1'], 2, launch.text)
    for records in found.values():
      for record in records:
        cpu, fake = record.clients['cpu'], record.clients['fake']
        self.assertContainsSubset(_OF_SERVERS, cpu.computations)
        allowed = _OF_WORKERS | _OF_EVALUATIONS
        self.assertEqual(set(fake.computations) - allowed, set())
        self.assertIn('jit_part', fake.computations)
        self.assertNotIn('jit_part', cpu.computations)

  def test_with_dedicated_servers_a_worker_evaluates(self):
    found, _ = self._launch(servers=2, dedicated=True)
    for role in ('server:0', 'server:1'):
      (record,) = found[role]
      self.assertEqual(set(record.clients), {'cpu'})
      self.assertNotIn('jit_sum_measures', record.clients['cpu'].computations)
    for role in ('worker:0', 'worker:1'):
      (record,) = found[role]
      fake = record.clients['fake'].computations
      self.assertIn('jit_sum_measures', fake)
      self.assertEqual(set(fake) - _OF_WORKERS - _OF_EVALUATIONS, set())

  def test_without_a_model_no_accelerator_starts(self):
    found, _ = self._launch(servers=1, model=False)
    for records in found.values():
      self.assertEqual([set(each.clients) for each in records], [{'cpu'}])


class ReplicaTest(_TestCase):
  def test_replicas_update_where_their_gradients_are(self):
    found, _ = self._launch(
      servers=0,
      platforms='fake',
      route__name='ring',
      wire__name='lowrank',
    )
    for (record,) in found.values():
      cpu, fake = record.clients['cpu'], record.clients['fake']
      self.assertContainsSubset(
        {'jit_part', 'jit_apply'}, set(fake.computations)
      )
      allowed = _OF_REPLICAS | _OF_EVALUATIONS
      self.assertEqual(set(fake.computations) - allowed, set())
      self.assertNotIn(_INITIAL, fake.computations)
      # The factors of the codec, which hosts sum.
      self.assertIn('jit__lambda', cpu.computations)
      self.assertNotIn('jit_apply', cpu.computations)


class ToolsTest(_TestCase):
  def test_a_sweep_plans_without_accelerators(self):
    fields = {'batching__name': 'lb_bsp', 'checkpoint__every_examples': 96}
    done = small.python(
      'sweep.py',
      f'--config={_config("config", **fields)}',
      '--grid=seed=0,1',
      f'--out={self.folder}/sweep',
      '--dry-run',
      **accelerators.environment(self.folder / 'record'),
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    records = accelerators.records(self.folder / 'record')
    self.assertNotEmpty(records)
    for record in records:
      self.assertEqual(set(record.clients), {'cpu'})

  @parameterized.parameters('report', 'compare')
  def test_tools_start_no_accelerator_to_be_imported(self, tool):
    done = small.python(
      *('-m', f'tools.{tool}', '--help'),
      **accelerators.environment(self.folder / 'record'),
    )
    self.assertEqual((done.returncode, done.stderr), (1, ''))
    self.assertEmpty(accelerators.records(self.folder / 'record'))


if __name__ == '__main__':
  absltest.main()
