"""Tests for launches and sweeps on Ray.

Those with a cluster have several nodes on this machine, and need an interpreter
that has Ray: see `tests.support.ray_nodes`.
"""

import json
import os
import pathlib
import signal
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.process import ray_cluster
from launch import ray_processes
from launch.plan import Plan
from sweeps import ray_tasks
from tests.support import launches, ray_nodes, requires, sweeping

_CONFIG = (
  *('--config=configs/vgg16_bsp.py', '--config.model.name=none'),
  *('--config.model.none.size_bytes=4000', '--config.checkpoint.every_s=0.2'),
)
_LIMIT_S = 120.0


def _plan(**fields):
  fields = {'workers': 2, 'servers': 1, 'dedicated': True} | fields
  return Plan(workdir=pathlib.Path('run'), **fields)


def _node(*, alive=True, **resources):
  return {'Alive': alive, 'Resources': resources}


class BundlesTest(parameterized.TestCase):
  def test_each_process_has_a_bundle_and_workers_have_gpus(self):
    plan = _plan(devices_per_worker=2)
    request = ray_processes.Request(cpus=3.0, wait_s=1.0)

    bundles = ray_processes.make_bundles(plan, request, has_gpus=True)

    worker = {'CPU': 3.0, 'GPU': 2.0}
    expected = {
      'server 0': {'CPU': 3.0},
      'worker 0': worker,
      'worker 1': worker,
    }
    self.assertEqual(bundles, expected)

  def test_workers_that_share_a_gpu_have_equal_parts_of_it(self):
    plan = _plan(workers_per_gpu=4)
    request = ray_processes.Request(cpus=1.0, wait_s=1.0)

    bundles = ray_processes.make_bundles(plan, request, has_gpus=True)

    self.assertEqual(bundles['worker 1'], {'CPU': 1.0, 'GPU': 0.25})
    with self.assertRaisesRegex(ValueError, 'workers_per_gpu.*no GPU.*got 4'):
      ray_processes.make_bundles(plan, request, has_gpus=False)
    both = _plan(workers_per_gpu=2, devices_per_worker=2)
    with self.assertRaisesRegex(ValueError, 'devices_per_worker: .* got 2'):
      ray_processes.make_bundles(both, request, has_gpus=True)

  @parameterized.parameters(
    ([_node(CPU=2.0), _node(CPU=2.0)], ''),
    ([_node(CPU=2.0), _node(CPU=1.0)], '4 CPU where 2 nodes have 3'),
    ([_node(CPU=2.0), _node(CPU=2.0, alive=False)], '4 CPU where 1 nodes'),
    ([_node(CPU=1.0)] * 4, '2 CPU on a node where the largest has 1'),
    ([], '4 CPU where 0 nodes have 0'),
  )
  def test_a_shortage_is_described(self, listed, expected):
    found = ray_cluster.describe_shortage(listed, [{'CPU': 2.0}, {'CPU': 2.0}])

    self.assertIn(expected, found)
    self.assertEqual(bool(found), bool(expected))


class RefusalTest(parameterized.TestCase):
  def test_a_missing_ray_is_named_with_the_command_that_installs_it(self):
    with mock.patch.dict('sys.modules', ray=None):
      with self.assertRaisesRegex(
        ValueError, '--submit=ray: .*pip install -r requirements-ray.txt'
      ):
        ray_tasks.check({})
      with self.assertRaisesRegex(ValueError, '--on=ray: .*requirements-ray'):
        ray_cluster.connect('--on=ray')

  def test_unknown_options_of_tasks_are_refused(self):
    with mock.patch.dict('sys.modules', ray=mock.Mock()):
      ray_tasks.check({'num_gpus': 0.5, 'accelerator_type': 'A100'})
      with self.assertRaisesRegex(ValueError, 'submit_with.*timeout_min'):
        ray_tasks.check({'timeout_min': 60})
      with self.assertRaisesRegex(ValueError, "num_gpus: .*number.*'one'"):
        ray_tasks.check({'num_gpus': 'one'})

  def test_a_folder_that_a_node_does_not_see_is_named(self):
    here, other = launches.new_folder(), launches.new_folder()
    with ray_cluster.SharedFolder(here) as shared:
      ray_cluster.require_shared(
        str(here), shared.text, flag='--workdir', node='10.0.0.2'
      )
      for folder in (other, other / 'absent'):
        with (
          mock.patch.object(ray_cluster, '_SHARED_S', 0.0),
          self.assertRaisesRegex(
            ValueError, f'--workdir: .*share.*{folder}, which node 10.0.0.2'
          ),
        ):
          ray_cluster.require_shared(
            str(folder), shared.text, flag='--workdir', node='10.0.0.2'
          )
    self.assertEqual([*here.iterdir()], [])


class ClusterTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    python = requires.ray()
    cls.nodes = cls.enterClassContext(ray_nodes.cluster(python, 2, 2))

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp()) / 'run'

  def _launch(self, *words, workers=2, flags=(), config=_CONFIG):
    command = ('-m', 'tools.launch', '--on=ray', f'--workers={workers}')
    process = self.nodes.start(
      *(*command, *flags, f'--workdir={self.folder}', '--', *config, *words)
    )
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    return process

  def test_a_run_finishes_with_the_files_of_a_local_launch(self):
    process = self._launch(
      *('--config.model.none.num_train=640', '--config.epochs=1.0'),
      '--config.route.name=ring',
    )
    out, _ = process.communicate(timeout=_LIMIT_S)

    self.assertEqual(process.returncode, 0, out)
    self.assertIn('[worker 0] ', out)
    self.assertIn('[worker 1] ', out)
    summary = json.loads((self.folder / 'summary.json').read_text())
    self.assertEqual(summary['ended'], 'finished')
    rows = launches.rows(self.folder)
    self.assertEqual(launches.starts(rows), {'worker:0': 1, 'worker:1': 1})
    for role in ('worker:0', 'worker:1'):
      self.assertEqual(launches.codes(rows, role), [0])
    self.assertEqual([*self.folder.glob('.shared-*')], [])

  def test_a_killed_worker_restarts_alone_and_sigterm_saves_a_checkpoint(self):
    process = self._launch(
      '--config.epochs=1000.0', '--config.route.name=ring', workers=3
    )
    self._wait_for_iterations()
    pid = next(
      int(path.name)
      for path in pathlib.Path('/proc').glob('[0-9]*')
      if self._is_worker(path, 1)
    )
    os.kill(pid, signal.SIGKILL)
    launches.wait_for(
      condition=lambda: launches.starts(self._rows())['worker:1'] == 2
    )
    self._wait_for_join()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=_LIMIT_S)

    self.assertEqual(process.returncode, 128 + signal.SIGTERM, out)
    rows = self._rows()
    self.assertEqual(launches.codes(rows, 'worker:1')[0], -signal.SIGKILL)
    starts = {'worker:0': 1, 'worker:1': 2, 'worker:2': 1}
    self.assertEqual(launches.starts(rows), starts)
    self.assertNotEmpty([*self.folder.glob('checkpoints/*/coordinator')])

  def test_a_final_reason_ends_the_run_without_a_restart(self):
    process = self._launch('--config.cluster.interface=no-such-interface')
    out, _ = process.communicate(timeout=_LIMIT_S)

    self.assertEqual(process.returncode, 1, out)
    self.assertIn('no-such-interface', out)
    self.assertEqual(max(launches.starts(self._rows()).values()), 1)

  def test_a_worker_of_a_lost_node_restarts_on_another_node(self):
    with ray_nodes.cluster(self.nodes.python, 2, 1) as cluster:
      self.nodes = cluster
      process = self._launch(
        '--config.epochs=1000.0', '--config.route.name=ring', workers=3
      )
      self._wait_for_iterations()
      cluster.change('remove', 1)
      launches.wait_for(
        condition=lambda: max(launches.starts(self._rows()).values()) == 2
      )
      cluster.change('add', 1)
      self._wait_for_join()
      process.send_signal(signal.SIGTERM)
      out, _ = process.communicate(timeout=_LIMIT_S)
    self.assertEqual(process.returncode, 128 + signal.SIGTERM, out)
    self.assertIn('was lost with its actor of Ray', out)

  def test_more_resources_than_the_cluster_has_are_named(self):
    process = self._launch(workers=5, flags=['--wait_s=2'])
    out, _ = process.communicate(timeout=_LIMIT_S)

    self.assertEqual(process.returncode, 1, out)
    self.assertIn('--on=ray: expected a cluster with room for 5 processes', out)
    self.assertIn('5 CPU where 2 nodes have 4', out)
    self.assertFalse(self.folder.exists())

  def test_a_sweep_trains_its_runs_and_collects_results(self):
    words = sweeping.command(self.folder, 'seed=0,1', '--submit=ray')
    process = self.nodes.start(*words[1:])
    out, _ = process.communicate(timeout=_LIMIT_S)

    self.assertEqual(process.returncode, 0, out)
    self.assertLen(sweeping.finished_runs(self.folder), 2)
    self.assertTrue((self.folder / 'results.csv').exists())
    self.assertNotEmpty([*self.folder.glob('*/log.txt')])

  def test_a_stopped_sweep_saves_checkpoints_of_its_runs(self):
    words = sweeping.command(
      self.folder, 'seed=0', '--submit=ray', '--config.epochs=100000.0'
    )
    process = self.nodes.start(*words[1:])
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    launches.wait_for(condition=lambda: [*self.folder.glob('*/metrics.jsonl')])
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=_LIMIT_S)

    self.assertEqual(process.returncode, 128 + signal.SIGTERM, out)
    (path,) = self.folder.glob('*/summary.json')
    self.assertEqual(json.loads(path.read_text())['reason'], 'stopped')
    self.assertNotEmpty([*self.folder.glob('*/checkpoints/*/coordinator')])

  def _rows(self):
    return launches.rows(self.folder)

  def _wait_for_iterations(self):
    """Waits until the run has a checkpoint."""
    path = self.folder / 'checkpoints'
    launches.wait_for(condition=lambda: [*path.glob('*/coordinator')])

  def _wait_for_join(self):
    """Waits until a worker has joined again."""
    events = self.folder / 'events.jsonl'
    launches.wait_for(condition=lambda: '"join"' in events.read_text())

  def _is_worker(self, process, rank):
    """Returns whether a process of /proc is this run's worker."""
    try:
      words = (process / 'cmdline').read_text().split('\0')
    except OSError:
      return False
    return f'--role=worker:{rank}' in words and any(
      word.endswith(str(self.folder)) for word in words
    )


if __name__ == '__main__':
  absltest.main()
