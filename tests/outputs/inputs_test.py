"""Tests of files that a run reads: their content identifies the run."""

import copy
import hashlib
import json
import os
import pathlib
import tempfile
from pydoc_data.topics import topics
from unittest import mock

import jax
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

import train
from configs import default
from outputs import inputs, manifests
from sweeps import checking, folder, grid, plan
from tests.support import small, stopping
from topology.clusters import cluster, shapes

_OWN = dict.fromkeys(('scheme', 'task', 'dataset'))
# Fields that hold text, but no file whose content changes a result.
_OTHER_TEXTS = {
  *('config.cluster.interface', 'config.cluster.token_file'),
  *('config.cluster.certificate_file', 'config.cluster.key_file'),
  *('config.cluster.tls_name', 'config.cluster.island_sharding'),
  *('config.cluster.runtime', 'config.outputs.mlflow'),
}
_CHOICES = (
  *('name', 'dtype', 'late', 'unit', 'correction', 'reduction', 'norm'),
  *('matmul', 'loss_scaling', 'size', 'counts', 'bucket_bytes'),
  *('worker_column', 'order_column', 'value_column', 'driving_columns'),
)
# What makes a run read the file or folder of a field.
_READ = {
  'batching.lb_bsp_gpu.curves': {'batching.name': 'lb_bsp_gpu'},
  'route.ring.cluster': {'route.name': 'ring'},
  'route.hierarchical.cluster': {'route.name': 'hierarchical'},
  'route.double_tree.cluster': {'route.name': 'double_tree'},
  'route.forest.cluster': {'route.name': 'forest'},
  'route.auto.cluster': {'route.name': 'auto'},
  'cluster.speed.layers': {},
  'cluster.speed.trace.path': {'cluster.speed.name': 'trace'},
  'cluster.links': {},
  'model.init': {},
  'data.cifar10.file': {'data.name': 'cifar10'},
  'data.cifar100.file': {'data.name': 'cifar100'},
  'data.arrays.file': {'data.name': 'arrays'},
  'data.text.file': {'data.name': 'text'},
  'data.tokens.file': {'data.name': 'tokens'},
  'data.tokens.test_file': {'data.name': 'tokens'},
}
_FOLDERS = {
  'data.fashion_mnist.folder': ('fashion_mnist', 'train-images-idx3-ubyte.gz'),
  'data.imagenet.folder': ('imagenet', 'val/cat/1.JPEG'),
  'data.folder.folder': ('folder', 'train/cat/1.png'),
}


def _texts(section, above='config'):
  """Yields the fields of a config that hold text."""
  for name, value in section.items():
    if isinstance(value, dict):
      yield from _texts(value, f'{above}.{name}')
    elif isinstance(value, str):
      yield f'{above}.{name}'


def _described(fields):
  config = default.get_config()
  config.update_from_flattened_dict(fields)
  return manifests.described(config.to_dict(), _OWN)


class ContentTest(parameterized.TestCase):
  def test_every_text_of_a_config_is_an_input_or_known_to_be_none(self):
    for field in _texts(default.get_config().to_dict()):
      known = field in _OTHER_TEXTS or field.split('.')[-1] in _CHOICES
      if field == 'config.data.dir':
        continue  # Its files are inputs.
      is_read = field.removeprefix('config.') in {*_READ, *_FOLDERS}
      self.assertNotEqual(known, is_read, field)

  @parameterized.parameters(*_READ)
  def test_content_identifies_a_run_and_the_place_does_not(self, field):
    identities = []
    for content in (b'first', b'second', b'first'):
      place = pathlib.Path(tempfile.mkdtemp(), 'file')
      place.write_bytes(content)
      fields = dict(_READ[field])
      if field.startswith('data.'):
        fields |= {'data.dir': str(place.parent), field: place.name}
        if field == 'data.tokens.test_file':
          (place.parent / 'train.bin').touch()
      else:
        fields[field] = str(place)
      described = _described(fields)
      self.assertIn(f'config.{field}', described['files'])
      identities.append(manifests.fingerprint(described))
    self.assertEqual(identities[0], identities[2])
    self.assertNotEqual(identities[0], identities[1])

  def test_images_that_are_tested_identify_a_run_and_others_do_not(self):
    place = pathlib.Path(tempfile.mkdtemp())
    identities = []
    for file in ('train/a.png', 'val/a.png', 'test/a.png', 'val/b.png'):
      path = place / 'images' / pathlib.Path(file).with_suffix('') / 'b.png'
      path.parent.mkdir(parents=True)
      path.touch()
      described = _described({'data.name': 'folder', 'data.dir': str(place)})
      identities.append(manifests.fingerprint(described))
    self.assertLen({*identities}, 3)
    self.assertEqual(identities[2], identities[3])

  @parameterized.parameters(*_FOLDERS)
  def test_files_of_a_folder_identify_a_run(self, field):
    name, file = _FOLDERS[field]
    identities = []
    for content in (b'first', b'second', b'first'):
      place = pathlib.Path(tempfile.mkdtemp())
      path = place / default.get_config()['data'][name].folder / file
      path.parent.mkdir(parents=True)
      path.write_bytes(content)
      described = _described({'data.name': name, 'data.dir': str(place)})
      identities.append(manifests.fingerprint(described))
    self.assertEqual(identities[0], identities[2])
    self.assertNotEqual(identities[0], identities[1])

  def test_the_text_that_comes_with_python_is_identified_by_its_hash(self):
    joined = ''.join(f'\0{topic}' for topic in topics.values()).encode()
    files = _described({'data.name': 'text'})['files']
    digest = hashlib.sha256(joined).hexdigest()
    self.assertEqual(files['config.data.text.file']['digest'], digest)

  @parameterized.parameters(
    {'model.name': 'none', 'data.name': 'text'},
    {'cluster.links': 'ring(4, 25)'},
    {'cluster.speed.layers': 'roofline(alexnet, 128)'},
    {'route.name': 'ring', 'route.ring.cluster': 'probe'},
    {'cluster.runtime': 'distributed', 'cluster.links': 'links.json'},
  )
  def test_a_run_that_reads_no_file_has_none(self, **fields):
    self.assertEqual(_described(fields)['files'], {})

  def test_a_missing_file_counts_by_its_path(self):
    one, other = (
      manifests.fingerprint(_described({'cluster.links': f'{name}.json'}))
      for name in ('missing', 'absent')
    )
    self.assertNotEqual(one, other)

  def test_a_file_is_read_again_once_it_has_changed(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'links.json')
    found = []
    for content in ('one', 'two'):
      path.write_text(content)
      fields = {'cluster.links': str(path)}
      found.append(_described(fields)['files']['config.cluster.links'])
    self.assertNotEqual(found[0]['digest'], found[1]['digest'])


class ResumeTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.trace = self.folder / 'trace.csv'
    self._write([0.5, 0.7, 0.6])
    self.config = stopping.eventful(
      'asp',
      cluster__speed__name='trace',
      cluster__speed__trace__path=str(self.trace),
    )

  def _write(self, values):
    rows = [
      f'{worker},{time},{value}'
      for worker in range(3)
      for time, value in enumerate(values)
    ]
    lines = ['worker,time,batch_time_norm', *rows]
    self.trace.write_text('\n'.join(lines) + '\n')

  def _build(self, config=None) -> train.Run:
    return train.build(config or self.config, workdir=str(self.folder / 'run'))

  def _stop(self):
    run = self._build()
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[20], killed_at=40)
    run.files.release()

  def test_a_run_whose_trace_was_edited_does_not_resume(self):
    self._stop()
    self._write([0.5, 0.7, 0.8])
    expected = r'config\.cluster\.speed\.trace\.path: .*trace\.csv'
    with self.assertRaisesRegex(ValueError, expected):
      self._build()

  def test_a_run_whose_trace_has_moved_resumes(self):
    self._stop()
    moved = self.trace.rename(self.folder / 'moved.csv')
    config = copy.deepcopy(self.config)
    config.cluster.speed.trace.path = str(moved)
    self.assertIsNotNone(self._build(config).sizes)


class RandomTest(parameterized.TestCase):
  @parameterized.parameters(
    ('jax_default_prng_impl', 'rbg'), ('jax_threefry_partitionable', False)
  )
  def test_other_random_numbers_of_jax_are_refused(self, name, value):
    folder_ = f'{tempfile.mkdtemp()}/run'
    config: ConfigDict = small.timing(checkpoint__every_examples=50)
    train.build(config, workdir=folder_).files.release()
    before = getattr(jax.config, name)
    here = manifests.fingerprint(_described({}))
    jax.config.update(name, value)
    self.addCleanup(jax.config.update, name, before)
    self.assertNotEqual(manifests.fingerprint(_described({})), here)
    with self.assertRaisesRegex(
      ValueError, f'random\\.{name}: expected {before!r}, got {value!r}'
    ):
      train.build(config, workdir=folder_)


class SweepTest(absltest.TestCase):
  def _plan(self, text, links):
    def check(lines):
      return [checking.resolve(line) for line in lines]

    fields = {
      'model.name': 'none',
      'cluster.workers': '4',
      'route.name': 'ring',
      'route.ring.cluster': str(links),
    }
    shared = plan.SharedConfig('configs/vgg16_bsp.py', fields)
    return plan.plan_runs(shared, grid.points(text), check)

  def test_a_sweep_is_not_extended_once_a_file_has_changed(self):
    out = pathlib.Path(tempfile.mkdtemp())
    links = out / 'links.json'
    links.write_text(json.dumps(cluster.to_json(shapes.star([1, 1, 1, 1]))))
    first = folder.SweepFolder(str(out / 'sweep'))
    first.claim(self._plan('seed=0', links))
    first._lock.release()
    same = self._plan('seed=0,1', links)
    folder.SweepFolder(str(out / 'sweep')).check(same)
    moved = out / 'moved.json'
    moved.write_bytes(links.read_bytes())
    again = self._plan('seed=0,1', moved)
    folder.SweepFolder(str(out / 'sweep')).check(again)
    links.write_text(json.dumps(cluster.to_json(shapes.star([1, 1, 1, 2]))))
    for text in ('seed=0,1', 'seed=1'):
      changed = self._plan(text, links)
      with self.assertRaisesRegex(
        ValueError, r'config\.route\.ring\.cluster: .*links\.json'
      ):
        folder.SweepFolder(str(out / 'sweep')).check(changed)


class EnvironmentTest(absltest.TestCase):
  def test_data_files_are_found_by_the_variable(self):
    place = pathlib.Path(tempfile.mkdtemp())
    (place / 'book.txt').write_text('text')
    fields = {'data.name': 'text', 'data.text.file': 'book.txt'}
    by_field = _described({**fields, 'data.dir': str(place)})
    with mock.patch.dict(os.environ, SYNCOPATE_DATA=str(place)):
      by_variable = _described(fields)
    one, other = map(manifests.fingerprint, (by_field, by_variable))
    self.assertEqual(one, other)
    self.assertEqual(
      inputs.identified_fields(by_field['files']),
      {'config.data.dir', 'config.data.text.file'},
    )


class IdentityTest(absltest.TestCase):
  """Fields by which hosts name the difference of their configs."""

  def test_configs_of_equal_fingerprints_have_equal_fields(self):
    own = _described({})
    for fields in ({'seed': 1}, {'cluster.port': 7}, {'outputs.mlflow': 'x'}):
      other = _described(fields)
      self.assertEqual(
        manifests.fingerprint(own) == manifests.fingerprint(other),
        manifests.identity(own) == manifests.identity(other),
      )

  def test_only_the_field_that_differs_is_named(self):
    found = manifests.describe_difference(
      manifests.identity(_described({})),
      manifests.identity(_described({'seed': 12})),
    )
    self.assertRegex(found, r'^config\.seed: 12 instead of \d+$')

  def test_settings_of_a_host_are_not_shown(self):
    secret = 'http://me:secret@host'
    fields = manifests.identity(_described({'outputs.mlflow': secret}))
    self.assertNotIn('secret', ' '.join(fields.values()))


if __name__ == '__main__':
  absltest.main()
