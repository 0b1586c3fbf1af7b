"""No program that may run on a GPU has a scatter that is a loop there.

Models, optimisers and codecs are found by listing: new ones are tested, too.
"""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from configs import default
from data import augment
from data.dataset import Dataset, Split
from learning import optimizer, warm_up
from learning.evaluation import TaskEvaluation
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.learner import TaskLearner
from learning.shard_codec import ShardCodec
from models.task import classification, next_token
from tests.support import lowering, small_models
from wire.codec import Payload, Rows, Workspace

_BATCH = 2
_CLASSES = 10
_TOKENS = (8,)
_SHAPES = [(32, 32, 3), (224, 224, 3), _TOKENS]
# Beside the default settings: those that other inputs or operations need.
_OTHERS = {
  'resnet': [{'depth': 50}],
  'sparse': [
    {'correction': 'none', 'select_lag': 1, 'dtype': 'bfloat16'},
    {'correction': 'local', 'momentum': 0.9, 'warmup': (0.5,)},
  ],
}


def _names(section):
  """Returns the names that a section of a config can choose from."""
  fields = default.get_config()[section].items()
  choices = [name for name, own in fields if isinstance(own, ConfigDict)]
  return [name for name in choices if name not in ('none', 'own')]


def _settings(section, name):
  """Yields the arguments of the choices of a config section."""
  defaults = default.get_config()[section][name].to_dict()
  for changed in [{}, *_OTHERS.get(name, [])]:
    yield defaults | changed


def _built(name, shape):
  """Returns a model of few channels; None if it takes no such inputs."""
  make = importlib.import_module(f'models.{name}').make
  of_all = {'input_shape': shape, 'num_classes': _CLASSES, 'seed': 0}
  for own in _settings('model', name):
    if isinstance(own.get('width'), float):
      own = own | {'width': 1 / 32}
    try:
      model = small_models.make_by_numpy(make, **of_all, **own)
      task = _task(model, shape)
      jax.eval_shape(task.correct, task.params, task.stats, *_examples(shape))
    except ValueError as error:
      if 'input' not in str(error):
        raise
    else:
      return model
  return None


def _examples(shape):
  is_tokens = shape == _TOKENS
  inputs = np.zeros((_BATCH, *shape), np.int32 if is_tokens else np.float32)
  targets = np.zeros((_BATCH, *(shape if is_tokens else ())), np.int32)
  return Split(inputs, targets)


def _task(model, shape):
  if shape == _TOKENS:
    prepare = Dataset(*[_examples(shape)] * 2, separator=0).prepare
    return next_token(model, prepare, top=3, bytes_per_token=1.0)
  changed = augment.make(
    crop_padding=0, crop_area=0.5, flip=True, input_shape=shape
  )
  return classification(model, jnp.asarray, changed, top=3)


class LoweringTest(parameterized.TestCase):
  """Tests of the oracle: JAX's own gradients on a GPU."""

  def test_loops_are_found_and_counted(self):
    rows, windows = jnp.zeros((5, 3)), jnp.zeros((2, 6, 6, 4))

    def pooled(inputs):
      sizes = 1, 2, 2, 1
      return jax.lax.reduce_window(
        inputs, -jnp.inf, jax.lax.max, sizes, sizes, 'VALID'
      ).sum()

    places = jnp.zeros((2, 7), int)
    (one,) = lowering.loops(lambda rows: rows.at[places].add(1.0), rows)
    self.assertEqual(one.trips, 14)
    self.assertIn('scatter of tensor<5x3xf32>', one.operation)
    (one,) = lowering.loops(jax.grad(pooled), windows)
    self.assertEqual(one.trips, 2 * 3 * 3 * 4)
    self.assertIn('select_and_scatter of tensor<2x6x6x4xf32>', one.operation)

  def test_unordered_operations_are_no_loops(self):
    rows, places = jnp.zeros(5), jnp.zeros(2, int)
    unique = {'unique_indices': True}
    self.assertEmpty(
      lowering.loops(lambda rows: rows.at[places].set(1.0, **unique), rows)
    )
    counts = jnp.zeros(5, int)
    self.assertEmpty(
      lowering.loops(lambda counts: counts.at[places].add(1), counts)
    )

  def test_jitted_functions_are_lowered_instead_of_run(self):
    with lowering.lower_instead_of_running() as programs:
      rows = jax.jit(lambda rows, at: rows.at[at].add(1.0))(
        jnp.ones((5, 3)), jnp.zeros(4, int)
      )
    np.testing.assert_array_equal(rows, np.zeros((5, 3)))
    ((loop,),) = programs.values()
    self.assertEqual(loop.trips, 4)


class NoLoopTest(parameterized.TestCase):
  def _assert_none(self, programs, *called):
    for name in called:
      self.assertTrue(any(name in program for program in programs), name)
    found = {name: loops for name, loops in programs.items() if loops}
    self.assertEmpty(found)

  @parameterized.parameters(*_names('model'))
  def test_no_loop_in_gradients_and_evaluations_of(self, name):
    built = [(shape, _built(name, shape)) for shape in _SHAPES]
    self.assertTrue(any(model for _, model in built))
    for shape, model in built:
      if model is None:
        continue
      task, examples = _task(model, shape), _examples(shape)
      with (
        self.subTest(shape=shape),
        lowering.lower_instead_of_running() as programs,
      ):
        gradient = TaskGradient(
          task,
          examples,
          lambda ranges: np.arange(*ranges[0]),
          micro_batch=_BATCH,
          seed=0,
          scaled=True,
        )
        gradient(
          task.params, Iteration(((0, _BATCH),), worker=0, number=0, scale=2.0)
        )
        evaluation = TaskEvaluation(task, examples)
        evaluation(task.params, task.stats)
        evaluation.is_finite(task.params)
        self._assert_none(programs, 'part', 'sum_measures', 'is_finite')

  @parameterized.parameters(*_names('optimizer'))
  def test_no_loop_in_updates_of(self, name):
    own = default.get_config().optimizer[name].to_dict()
    params = {'kernel': jnp.ones((5, 4)), 'bias': jnp.ones(4)}
    with lowering.lower_instead_of_running() as programs:
      learner = TaskLearner(
        params=params,
        stats={'mean': jnp.ones(4)},
        tx=optimizer.clipped(getattr(optimizer, name)(**own), clip_norm=1.0),
        schedule=lambda examples, updates: 0.1,
        reduction='mean',
        num_workers=2,
        worker_batch=_BATCH,
      )
      like = Payload(params, learner.stats)
      warm_up.apply_updates(learner, like, adds=True)
      learner.fork()
      self._assert_none(programs, 'init_fn', 'apply', 'add_trees', 'lambda')

  @parameterized.parameters(*_names('wire'))
  def test_no_loop_in_codecs_of(self, name):
    params = {'kernel': jnp.ones((40, 30)), 'bias': jnp.ones(40)}
    stats = {'mean': jnp.ones(40)}
    for own in _settings('wire', name):
      if 'chunk' in own:
        own = own | {'chunk': 8}
      wire = importlib.import_module(f'wire.{name}').make(**own)
      with self.subTest(**own), lowering.lower_instead_of_running() as programs:
        codec = ShardCodec(params, stats, servers=2, wire=wire)
        states = codec.init(0)
        for stage in range(len(wire.pushes)):
          payload = Payload(params, stats)
          messages, states, _ = codec.encode(states, payload, stage)
          for server, message in enumerate(messages):
            codec.decode(message, server, stage)
        codec.decode_pulls(
          [
            codec.encode_pull(*codec.initial_shard(server))
            for server in range(2)
          ]
        )
        self._assert_none(programs, 'encode', 'decode', 'encode_pull')
      with self.subTest(**own):
        self._assert_no_loops_in_allreduces(wire)

  def _assert_no_loops_in_allreduces(self, wire):
    for codec in wire.for_matrices([Rows(0, 40, 30)]).pushes:
      if codec.allreduce:
        vector = jax.ShapeDtypeStruct((1240,), jnp.float32)
        reduce = functools.partial(_reduce, codec)
        self.assertEmpty(lowering.loops(reduce, vector))


def _reduce(codec, vector):
  """Returns the allreduce of one worker, all rounds in one program."""
  state = codec.init(vector.size, 0)
  rounds = codec.allreduce(state, vector, 2.0, Workspace())
  contribution = next(rounds)
  while True:
    try:
      contribution = rounds.send(contribution)
    except StopIteration as end:
      return end.value


if __name__ == '__main__':
  absltest.main()
