"""Tests for sweeps.plan and sweeps.checking."""

import json
import pathlib
import shlex
import tempfile

from absl.testing import absltest, parameterized

import train
from outputs import manifests
from sweeps import checking, grid, plan
from tests.docs import pages

_FILE = 'configs/vgg16_bsp.py'
_BASE = plan.Base(_FILE, {'model.name': 'none'})
_SWEEPS = pathlib.Path(__file__).parents[2] / 'configs/sweeps'


def _planned(text, base=_BASE):
  def check(lines):
    return [checking.checked(line) for line in lines]

  return plan.planned(base, grid.points(text), check)


class PlannedTest(parameterized.TestCase):
  def test_a_run_is_what_main_makes_of_its_command(self):
    text = 'cluster.speed.slowdown=(1.0,),(1,2.5); cluster.workers=2; seed=3'
    base = plan.Base(f'{_FILE}:digits', _BASE.changes)
    _, run = _planned(text, base)
    words = shlex.split(run.command('runs/mine'))
    self.assertEqual(words[:2], ['python', 'main.py'])
    config, others = pages.config(words[2:])
    folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
    train.build(config, workdir=str(folder)).files.release()
    manifest = json.loads((folder / 'manifest.json').read_text())

    self.assertEqual(others, {'workdir': f'runs/mine/{run.name}'})
    self.assertEqual(manifests.fingerprint(manifest), run.checked.identity)
    self.assertEqual(config.cluster.speed.slowdown, (1.0, 2.5))
    self.assertEqual(run.checked.fields['cluster.speed.slowdown'], (1.0, 2.5))
    self.assertRegex(run.name, '^slowdown_1_2.5-workers2-seed3-[0-9a-f]{8}$')

  def test_what_hosts_have_in_their_own_way_is_no_part_of_the_identity(self):
    (here,) = _planned('seed=1')
    changes = {**_BASE.changes, 'checkpoint.every_s': '7.0'}
    (there,) = _planned('seed=1', plan.Base(_FILE, changes))
    (other,) = _planned('seed=2')
    self.assertEqual(here.checked.identity, there.checked.identity)
    self.assertNotEqual(here.checked.identity, other.checked.identity)

  def test_fields_that_differ_are_those_of_the_whole_configs(self):
    runs = _planned('sync.name & sync.ssp.bound = bsp &, ssp & 9; seed = 1')
    self.assertEqual(plan.differing(runs), ['sync.name', 'sync.ssp.bound'])

  @parameterized.named_parameters(
    ('unknown', 'sync.nam=bsp', 'unknown field.*--config.sync.nam=bsp'),
    ('no_section', 'snc.name=bsp', 'unknown field.*--config.snc.name'),
    ('renamed', 'sync.bsp.pipelined=True', 'is called'),
    ('type', 'seed=one', 'seed'),
    ('fraction', 'cluster.workers=2.5', 'cluster.workers'),
    ('tuple', 'cluster.speed.slowdown=fast', 'slowdown'),
    ('no_such', 'sync.name=bps', r"config.sync.name: expected one of .*'bps'"),
    ('ignored', 'sync.ssp.bound=5', 'because config.sync.name is'),
    ('range', 'cluster.workers=0', 'config.cluster.workers: expected more'),
    (
      'barrier',
      'batching.name=lb_bsp_gpu; sync.name=asp',
      'config.batching.name',
    ),
    ('route', 'route.name=ring; sync.name=asp', 'config.route.name'),
    ('count', 'cluster.workers=3', 'slowdown'),
    ('script', 'cluster.script=((1.0,"leave",9),)', 'config.cluster.script'),
    ('both', 'seed=1; model.name=vgg,mlp', 'either --config.model.name or'),
    ('real', 'cluster.runtime=distributed', 'one process for each run'),
    ('lost', 'checkpoint.every_s=inf', 'from which a sweep goes on'),
    ('same', 'seed=1,2,1', r"runs that differ, but {'seed': '1'}"),
    ('same_run', 'checkpoint.every_s=1.0,2.0', 'is the same run'),
  )
  def test_a_bad_grid_is_refused(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      _planned(text)

  @parameterized.named_parameters(
    ('optimizer', 'optimizer.sgd.momentum=2.0', 'config.optimizer.sgd.mom'),
    ('schedule', 'schedule.warmup_epochs=-1.0', 'config.schedule.warmup'),
    ('data', 'data.name=digit', 'config.data.name: expected one of'),
  )
  def test_what_needs_a_model_is_refused_without_making_it(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      _planned(text, plan.Base(_FILE, {}))

  def test_the_grids_of_sweep_files_are_as_they_say(self):
    for path, count in {'schemes': 60, 'bounds': 30}.items():
      file = f'configs/sweeps/{path}.py'
      points = grid.points(plan.grid_of(file))
      self.assertLen(points, count)
      shown = points[:: count // 10]
      lines = [
        (f'--config={file}', *(f'--config.{f}={v}' for f, v in point.items()))
        for point in shown
      ]
      for line in lines:
        checking.checked(line)
    self.assertLen(list(_SWEEPS.glob('*.py')), 2)

  def test_a_file_without_a_grid_needs_one(self):
    with self.assertRaisesRegex(ValueError, '--grid: expected some, or GRID'):
      plan.grid_of(_FILE)


if __name__ == '__main__':
  absltest.main()
