"""Tests that train.build accepts every experiment of configs/."""

import functools
import importlib
import pathlib
import re
import tempfile
import types
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx
from ml_collections import ConfigDict

import train
from configs import relations, sections
from data.dataset import Dataset, Split
from models import mlp
from tests.support import requires

_FOLDER = pathlib.Path(__file__).parents[2] / 'configs'
_COMMAND = re.compile(r'main\.py --config=configs/(\w+)\.py(?::(\w+))?')
_RECIPES = ('cifar10_vgg16', 'cifar10_resnet32', 'cifar10_alexnet', 'imagenet')
_RECIPES += ('gradientflow',)
_MANY = 64  # Workers; forests of more take seconds.
# Examples to train on and to test, and classes, of the data that need files.
_SIZES = {
  'cifar10': (50_000, 10_000, 10),
  'imagenet': (1_281_167, 50_000, 1000),
  'tokens': (1_000_000, 1024, 50_257),
}


def _experiments() -> dict[str, types.ModuleType]:
  names = {path.stem for path in _FOLDER.glob('*.py')} - {'default'}
  modules = {
    name: importlib.import_module(f'configs.{name}') for name in sorted(names)
  }
  return {
    name: module
    for name, module in modules.items()
    if hasattr(module, 'get_config')
  }


_MODULES = _experiments()
_EXPERIMENTS = [
  (name, variant)
  for name, module in _MODULES.items()
  for _, variant in _COMMAND.findall(module.__doc__)
]


def _config(name: str, variant: str) -> ConfigDict:
  get_config = _MODULES[name].get_config
  return get_config(variant) if variant else get_config()


def _build(config: ConfigDict) -> train.Run:
  return train.build(config, workdir=f'{tempfile.mkdtemp()}/run')


def _pixels(config: ConfigDict) -> int:
  return config.data.imagenet.pixels if config.data.name == 'imagenet' else 32


def _blank(config: ConfigDict) -> Dataset:
  """Returns the data set's sizes, at the memory of one pixel."""
  *sizes, num_classes = _SIZES[config.data.name]
  if config.data.name == 'tokens':
    shapes = [(size, config.data.tokens.length) for size in sizes]
    rows = [np.broadcast_to(np.int32(0), shape) for shape in shapes]
    return Dataset(*(Split(each, each) for each in rows), num_classes)
  shape = (_pixels(config), _pixels(config), 3)
  splits = [
    Split(
      np.broadcast_to(np.uint8(0), (size, *shape)), np.zeros(size, np.int32)
    )
    for size in sizes
  ]
  return Dataset(*splits, num_classes, mean=(0.5,) * 3, std=(0.25,) * 3)


class _OfTokens(nnx.Module):
  """The same logits for each token."""

  def __init__(self, num_classes):
    self.logits = nnx.Param(jnp.zeros(num_classes))

  def __call__(self, inputs, *, rngs=None):
    tokens = inputs[0] if isinstance(inputs, tuple) else inputs
    return jnp.broadcast_to(self.logits[...], (*tokens.shape, self.logits.size))


def _stand_in(config: ConfigDict) -> Callable[..., nnx.Module]:
  """Returns a `make` that checks its arguments and draws few parameters."""
  make = importlib.import_module(f'models.{config.model.name}').make
  small = mlp.make  # Before it is replaced itself.

  def made(*, input_shape, num_classes, seed, **own):
    shared = {
      'input_shape': input_shape,
      'num_classes': num_classes,
      'seed': seed,
    }
    _abstract(make, **shared, **own)
    if len(input_shape) == 1:
      return _OfTokens(num_classes)
    return small(**shared, hidden=(1,))

  return made


@functools.cache
def _abstract(make: Callable[..., nnx.Module], **arguments) -> nnx.Module:
  """Returns a model of shapes, without parameters."""
  return nnx.eval_shape(lambda: make(**arguments))


def _patch(test: absltest.TestCase, module: str, make: Callable) -> None:
  test.enter_context(mock.patch(f'{module}.make', make))


class FileTest(parameterized.TestCase):
  def test_every_recipe_has_commands(self):
    self.assertContainsSubset(_RECIPES, _MODULES)
    for name, module in _MODULES.items():
      named = {file for file, _ in _COMMAND.findall(module.__doc__)}
      self.assertEqual(named, {name})

  @parameterized.parameters(_EXPERIMENTS)
  def test_every_command_names_a_config_of_the_known_fields(
    self, name, variant
  ):
    config = _config(name, variant)
    self.assertTrue(config.is_locked)
    sections.check_fields(config)
    relations.check_relations(config)

  @parameterized.parameters(
    each for each in _EXPERIMENTS if _config(*each).cluster.workers <= _MANY
  )
  def test_every_command_builds_a_run_once_its_data_are_there(
    self, name, variant
  ):
    config = _config(name, variant)
    if config.data.name in _SIZES:
      _patch(self, f'data.{config.data.name}', lambda **_: _blank(config))
    if config.model.name != 'none':
      _patch(self, f'models.{config.model.name}', _stand_in(config))
    _build(config)

  @parameterized.parameters(
    ('cifar10_vgg16', 'full', 15_245_130),
    ('cifar10_resnet32', 'full', 464_154),
    ('cifar10_alexnet', 'full', 145_706),
    ('imagenet', 'resnet50', 25_557_032),
    ('imagenet', 'inception_v3', 23_834_568),
    ('imagenet', 'alexnet', 61_100_840),
    ('imagenet', 'vgg16', 138_357_544),
    ('gradientflow', 'alexnet_512', 61_101_992),
    ('gradientflow', 'resnet50_64', 25_557_032),
  )
  def test_recipes_for_gpus_have_networks_of_full_size(
    self, name, variant, parameters
  ):
    config = _config(name, variant)
    _, own = sections.choose_section(config, 'model')
    model = _abstract(
      importlib.import_module(f'models.{config.model.name}').make,
      input_shape=(_pixels(config), _pixels(config), 3),
      num_classes=_SIZES[config.data.name][-1],
      seed=0,
      **own,
    )
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    self.assertEqual(sum(leaf.size for leaf in leaves), parameters)

  @parameterized.parameters('alexnet', 'resnet50')
  def test_simulated_sizes_equal_those_of_trained_models(self, model):
    config = _config('gradientflow', f'{model}_64_time')
    trained = _config('gradientflow', f'{model}_64')
    parameters = {'alexnet': 61_101_992, 'resnet50': 25_557_032}[model]
    self.assertEqual(config.model.none.size_bytes, 4 * parameters)
    self.assertEqual(config.model.none.num_train, _SIZES['imagenet'][0])
    for section in ('cluster', 'batching', 'wire', 'route', 'sync'):
      one, other = config[section].to_dict(), trained[section].to_dict()
      one.pop('micro_batch', None), other.pop('micro_batch', None)
      # The trained model has layers of its own.
      for each in (one, other):
        each.get('speed', {}).pop('layers', None)
      self.assertEqual(one, other)

  @parameterized.parameters(*_RECIPES)
  def test_unknown_variants_are_rejected_by_name(self, name):
    with self.assertRaisesRegex(ValueError, "variant: expected .* got 'tiny'"):
      _MODULES[name].get_config('tiny')


class DataTest(parameterized.TestCase):
  """Tests with the first images of CIFAR-10 (JPEG q75)."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    real = requires.data('cifar10_jpeg.npz')
    with np.load(real) as arrays:
      cut = dict(arrays)
    for split in ('train', 'test'):
      lengths = cut[f'{split}_len'][:1000]
      cut[f'{split}_len'] = lengths
      cut[f'{split}_buf'] = cut[f'{split}_buf'][: lengths.sum(dtype=int)]
      cut[f'{split}_y'] = cut[f'{split}_y'][:1000]
    cls.folder = tempfile.mkdtemp()
    np.savez(f'{cls.folder}/{real.name}', **cut)

  @parameterized.parameters(*_RECIPES[:3])
  def test_small_recipes_build(self, name):
    config = _config(name, 'small')
    config.data.dir = self.folder
    config.data.cifar10.file = 'cifar10_jpeg.npz'
    _build(config)


if __name__ == '__main__':
  absltest.main()
