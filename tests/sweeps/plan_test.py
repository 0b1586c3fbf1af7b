"""Tests for sweeps.plan and sweeps.checking."""

import json
import pathlib
import shlex
import tempfile

from absl.testing import absltest, parameterized

import train
from configs.sweeps import full_scale, goodput
from outputs import manifests
from sweeps import checking, grid, plan
from tests.docs import pages

_FILE = 'configs/vgg16_bsp.py'
_SHARED = plan.SharedConfig(_FILE, {'model.name': 'none'})
_SWEEPS = pathlib.Path(__file__).parents[2] / 'configs/sweeps'


def _plan(text, shared=_SHARED):
  def check(lines):
    return [checking.resolve(line) for line in lines]

  return plan.plan_runs(shared, grid.points(text), check)


class PlanTest(parameterized.TestCase):
  def test_a_run_equals_the_run_of_main_with_its_command(self):
    text = 'cluster.speed.slowdown=(1.0,),(1,2.5); cluster.workers=2; seed=3'
    shared = plan.SharedConfig(f'{_FILE}:digits', _SHARED.overrides)
    _, run = _plan(text, shared)
    words = shlex.split(run.command('runs/mine'))
    self.assertEqual(words[:2], ['python', 'main.py'])
    config, others = pages.config(words[2:])
    folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
    train.build(config, workdir=str(folder)).files.release()
    manifest = json.loads((folder / 'manifest.json').read_text())

    self.assertEqual(others, {'workdir': f'runs/mine/{run.name}'})
    self.assertEqual(manifests.fingerprint(manifest), run.resolved.identity)
    self.assertEqual(config.cluster.speed.slowdown, (1.0, 2.5))
    self.assertEqual(run.resolved.fields['cluster.speed.slowdown'], (1.0, 2.5))
    self.assertRegex(run.name, '^slowdown_1_2.5-workers2-seed3-[0-9a-f]{8}$')

  def test_settings_of_a_host_are_no_part_of_the_identity(self):
    (here,) = _plan('seed=1')
    changes = {**_SHARED.overrides, 'checkpoint.every_s': '7.0'}
    (there,) = _plan('seed=1', plan.SharedConfig(_FILE, changes))
    (other,) = _plan('seed=2')
    self.assertEqual(here.resolved.identity, there.resolved.identity)
    self.assertNotEqual(here.resolved.identity, other.resolved.identity)

  def test_differing_fields_are_those_of_the_resolved_configs(self):
    runs = _plan('sync.name & sync.ssp.bound = bsp &, ssp & 9; seed = 1')
    self.assertEqual(
      plan.differing_fields(runs), ['sync.name', 'sync.ssp.bound']
    )

  @parameterized.named_parameters(
    (
      'unknown',
      'sync.nam=bsp',
      'config.sync.nam: unknown; did you mean config.sync.name',
    ),
    ('no_section', 'snc.name=bsp', 'config.snc: unknown'),
    ('renamed', 'sync.bsp.pipelined=True', 'was renamed'),
    ('type', 'seed=one', 'seed'),
    ('fraction', 'cluster.workers=2.5', 'cluster.workers'),
    ('tuple', 'cluster.speed.slowdown=fast', 'slowdown'),
    ('no_such', 'sync.name=bps', r"config.sync.name: expected one of .*'bps'"),
    ('ignored', 'sync.ssp.bound=5', '5 is ignored by config.sync.name'),
    ('range', 'cluster.workers=0', 'config.cluster.workers: expected'),
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
    ('lost', 'checkpoint.every_s=inf', 'from which a sweep resumes'),
    ('same', 'seed=1,2,1', r"runs that differ, but {'seed': '1'}"),
    ('same_run', 'checkpoint.every_s=1.0,2.0', 'is the same run'),
  )
  def test_a_bad_grid_is_refused(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      _plan(text)

  @parameterized.named_parameters(
    ('optimizer', 'optimizer.sgd.momentum=2.0', 'config.optimizer.sgd.mom'),
    ('schedule', 'schedule.warmup_epochs=-1.0', 'config.schedule.warmup'),
    ('data', 'data.name=digit', 'config.data.name: expected one of'),
  )
  def test_fields_of_models_are_refused_without_making_one(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      _plan(text, plan.SharedConfig(_FILE, {}))

  def test_grids_of_sweep_files_have_the_documented_size(self):
    counts = {'schemes.py': 60, 'bounds.py': 30}
    counts |= {f'local_steps_{data}.py': 130 for data in ('digits', 'text')}
    counts |= {
      'local_steps_asynchronous.py': 36,
      'local_steps_fragments.py': 24,
    }
    counts |= {'tuned_digits.py': 84, 'tuned_text.py': 70}
    counts |= {f'goodput.py:{mean_s}': 8 for mean_s in ('none', '15')}
    counts |= {f'full_scale.py:{name}': 21 for name in full_scale.VARIANTS}
    for path, count in counts.items():
      file = f'configs/sweeps/{path}'
      points = grid.points(plan.read_grid(file))
      self.assertLen(points, count)
      shown = points[:: count // 3]
      lines = [
        (f'--config={file}', *(f'--config.{f}={v}' for f, v in point.items()))
        for point in shown
      ]
      for line in lines:
        checking.resolve(line)
    files = {path.partition(':')[0] for path in counts}
    self.assertEqual({path.name for path in _SWEEPS.glob('*.py')}, files)

  def test_failures_of_the_goodput_sweep_end_8_s_later(self):
    script = goodput.get_config('15').cluster.script
    for worker in range(8):
      own = [(time, kind) for time, kind, each in script if each == worker]
      for (died, leave), (back, join) in zip(own[::2], own[1::2], strict=True):
        self.assertEqual((leave, join), ('leave', 'join'))
        self.assertAlmostEqual(back - died, 8.0)
    lives = 6000.0 * 8 / (len(script) / 2) - 8.0
    self.assertBetween(lives, 13.5, 16.5)

  @parameterized.parameters('0', '-1', 'nan', 'seldom')
  def test_a_rate_of_failures_that_is_none_is_refused(self, variant):
    with self.assertRaisesRegex(ValueError, f"variant: .* got '{variant}'"):
      goodput.get_config(variant)

  def test_a_file_without_a_grid_needs_one(self):
    with self.assertRaisesRegex(ValueError, '--grid: expected some, or GRID'):
      plan.read_grid(_FILE)


if __name__ == '__main__':
  absltest.main()
