"""Small models with inputs, quick to create and to run, for tests."""

import functools
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
from flax import nnx

from models import alexnet, inception_v3, resnet, transformer

# Compiling takes most of the time of these tests.
jit = functools.partial(
  jax.jit,
  compiler_options={
    'xla_backend_optimization_level': 0,
    'xla_llvm_disable_expensive_passes': True,
  },
)


def make_resnet(**changed: Any) -> nnx.Module:
  """Returns a ResNet for CIFAR."""
  arguments = {
    'input_shape': (32, 32, 3),
    'num_classes': 10,
    'seed': 0,
    'depth': 20,
    'width': 1 / 8,
    'norm': 'group',
  }
  return resnet.make(**(arguments | changed))


def make_resnet50(**changed: Any) -> nnx.Module:
  """Returns a ResNet of bottlenecks, with batch normalisation."""
  return make_resnet(
    **({'depth': 50, 'width': 1 / 64, 'norm': 'batch'} | changed)
  )


def make_alexnet(**changed: Any) -> nnx.Module:
  """Returns an AlexNet of few channels."""
  arguments = {
    'input_shape': (32, 32, 3),
    'num_classes': 10,
    'seed': 0,
    'width': 1 / 8,
    'norm': 'none',
    'dropout': 0.5,
  }
  return alexnet.make(**(arguments | changed))


def make_inception(**changed: Any) -> nnx.Module:
  """Returns an Inception v3 for the smallest images that it takes."""
  arguments = {
    'input_shape': (75, 75, 3),
    'num_classes': 10,
    'seed': 0,
    'width': 1 / 32,
    'norm': 'none',
    'dropout': 0.5,
  }
  return inception_v3.make(**(arguments | changed))


def make_transformer(**changed: Any) -> nnx.Module:
  """Returns a Transformer of 11 tokens."""
  arguments = {
    'input_shape': (8,),
    'num_classes': 11,
    'seed': 0,
    'size': 'tiny',
    'layers': 2,
    'width': 12,
    'heads': 3,
    'dropout': 0.1,
  }
  return transformer.make(**(arguments | changed))


def images(shape: tuple[int, ...]) -> np.ndarray:
  """Returns normal pixels."""
  return np.random.default_rng(0).standard_normal(shape, np.float32)


def tokens(shape: tuple[int, ...]) -> np.ndarray:
  """Returns tokens for make_transformer."""
  return np.random.default_rng(0).integers(0, 11, shape, np.int32)


# Function that creates the model, and inputs, by name.
MODELS = {
  'resnet': (make_resnet, images((4, 32, 32, 3))),
  'resnet50': (make_resnet50, images((4, 32, 32, 3))),
  'alexnet': (make_alexnet, images((4, 32, 32, 3))),
  'inception_v3': (make_inception, images((4, 75, 75, 3))),
  'transformer': (make_transformer, tokens((4, 8))),
}


def size(model: nnx.Module, kind: Any = nnx.Param) -> int:
  """Returns the number of numbers in the variables of a kind."""
  leaves = jax.tree.leaves(nnx.state(model, kind))
  return sum(math.prod(leaf.shape) for leaf in leaves)


def logits_shape(model: nnx.Module, *shape: int) -> tuple[int, ...]:
  """Returns the shape of the logits of images without computing them."""
  inputs = jax.ShapeDtypeStruct(shape, np.float32)
  logits = nnx.eval_shape(lambda model, x: model(x), model, inputs)
  return logits.shape


def parts(model: nnx.Module) -> tuple[Any, Any, Any]:
  """Returns the graph, the parameters and the other arrays of a model."""
  graph, params, rest = nnx.split(model, nnx.Param, ...)
  return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(rest)


def make_by_numpy(
  make: Callable[..., nnx.Module], *, keyed: bool = False, **changed: Any
) -> nnx.Module:
  """Returns a model with parameters drawn by NumPy, without compilation.

  Args:
    make: Creates the model.
    keyed: True if the draws depend on the keys of JAX.
    **changed: Arguments of `make`.
  """
  shared_rng = np.random.default_rng(0)

  def draw(key, lower, upper, shape, dtype):
    rng = shared_rng
    if keyed:
      rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    row = rng.standard_normal((math.prod(shape), 8)).astype(dtype)
    inside = (lower < row) & (row < upper)
    return row[np.arange(len(row)), inside.argmax(axis=1)].reshape(shape)

  with mock.patch.object(jax.random, 'truncated_normal', draw):
    return make(**changed)


@functools.cache
def parts_of(name: str) -> tuple[Any, Any, Any]:
  """Returns the parts of one of MODELS."""
  return parts(make_by_numpy(MODELS[name][0]))


def perturb(model: nnx.Module) -> nnx.Module:
  """Returns a model whose scales, biases and statistics are not 0 or 1."""
  graph, params, rest = parts(model)
  rng = np.random.default_rng(1)

  def move(leaf):
    if leaf.ndim > 1:
      return leaf
    return leaf + rng.uniform(0, 0.3, leaf.shape).astype(np.float32)

  return nnx.merge(graph, *jax.tree.map(move, (params, rest)))


def evaluate(model: nnx.Module, inputs: np.ndarray) -> np.ndarray:
  """Returns the logits in evaluation."""
  graph, params, rest = parts(model)
  logits = jit(lambda *arrays: nnx.merge(graph, *arrays)(inputs))
  return np.asarray(logits(params, rest))
