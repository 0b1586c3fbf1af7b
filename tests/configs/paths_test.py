"""Tests of paths in flags and configs."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

import train
from configs import default, paths, sections
from tests.support import small


class HomeTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.home = pathlib.Path(tempfile.mkdtemp())

  def test_a_flag_of_a_run_may_begin_with_the_home_folder(self):
    done = small.python(
      *('main.py', '--config=configs/vgg16_bsp.py', '--config.epochs=0.01'),
      *('--config.model.name=none', '--workdir=~/runs/a'),
      HOME=str(self.home),
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertTrue((self.home / 'runs/a/summary.json').exists())

  def test_so_may_a_field(self):
    """And the run is the same as one with the whole path."""
    (self.home / 'trace.csv').write_text('worker,time,batch_time_norm\n0,0,1\n')
    configs = []
    for folder in ('~', str(self.home)):
      config = small.timing(
        cluster__workers=1,
        cluster__speed__slowdown=(1.0,),
        cluster__speed__name='trace',
        cluster__speed__trace__path=f'{folder}/trace.csv',
      )
      with mock.patch.dict(os.environ, HOME=str(self.home)):
        configs.append(train.check(config))
    self.assertEqual(*configs)

  def test_fields_of_paths_are_those_with_files_and_folders(self):
    config = default.get_config()
    for path, value in sections.iterate_fields(config):
      if isinstance(value, str):
        config.update_from_flattened_dict({path: '~/x,~/y'})
    with mock.patch.dict(os.environ, HOME=str(self.home)):
      found = paths.expand_home(config)
    expanded = {
      path
      for path, value in sections.iterate_fields(found)
      if isinstance(value, str) and not value.startswith('~')
    }
    curves = 'batching.lb_bsp_gpu.curves'
    self.assertEqual(found.batching.lb_bsp_gpu.curves.count(str(self.home)), 2)
    self.assertContainsSubset(
      {'data.dir', 'cluster.token_file', 'route.ring.cluster', curves}, expanded
    )
    self.assertNoCommonElements(expanded, {'sync.name', 'outputs.mlflow'})


if __name__ == '__main__':
  absltest.main()
