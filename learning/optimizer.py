"""Optimizers by name, from optax.

Arguments are the fields of config.optimizer.NAME (`configs.fields`), checked.

Optimizers are built with learning rate 1, and the learner multiplies their
result by the current rate.  For transformations that end in a scaling by the
learning rate this makes no difference.  LARS does not end so: its momentum then
holds steps before that scaling, as that of SGD does here.
"""

import math
from typing import Any

import jax
import numpy as np
import optax
from optax import contrib

from configs import declared
from configs.checks import require


@declared.check_arguments('optimizer.sgd')
def sgd(
  *, momentum: float, nesterov: bool, weight_decay: float
) -> optax.GradientTransformation:
  """Returns stochastic gradient descent with learning rate 1.

  Args:
    momentum: Decay of the sum of gradients; 0 for none.
    nesterov: Whether momentum is Nesterov's, which needs `momentum`.
    weight_decay: Multiple of the parameters that is added to the gradient.

  Raises:
    ValueError: If an argument is out of range, or if `nesterov` comes without
      momentum.
  """
  _check_nesterov(nesterov, momentum)
  return optax.chain(
    optax.add_decayed_weights(weight_decay)
    if weight_decay
    else optax.identity(),
    optax.sgd(1.0, momentum=momentum or None, nesterov=nesterov),
  )


@declared.check_arguments('optimizer.adamw')
def adamw(
  *, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """Returns Adam with decoupled weight decay, and with learning rate 1.

  Loshchilov and Hutter, 2019.

  Args:
    b1: Decay of the mean of gradients.
    b2: Decay of the mean of their squares.
    eps: Number added to the root of that mean.
    weight_decay: Multiple of the parameters that is added to the step.
  """
  return optax.adamw(1.0, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


@declared.check_arguments('optimizer.muon')
def muon(
  *,
  momentum: float,
  nesterov: bool,
  iterations: int,
  rms: float,
  b1: float,
  b2: float,
  eps: float,
  weight_decay: float,
) -> optax.GradientTransformation:
  """Returns Muon: momentum whose matrices are made orthogonal (Jordan, 2024).

  A kernel of a convolution is a matrix from all its inputs to its outputs.
  Newton-Schulz iterations bring the singular values of a matrix of momentum
  close to 1, and its step has the given root mean square.  Embeddings, and
  parameters of fewer than two dimensions, take steps of AdamW.
  """
  _check_nesterov(nesterov, momentum)
  return contrib.muon(
    1.0,
    ns_steps=iterations,
    beta=momentum,
    eps=eps,
    weight_decay=weight_decay,
    nesterov=nesterov,
    adam_b1=b1,
    adam_b2=b2,
    adam_weight_decay=weight_decay,
    muon_weight_dimension_numbers=_dimensions,
    consistent_rms=rms,
  )


@declared.check_arguments('optimizer.lars')
def lars(
  *,
  momentum: float,
  nesterov: bool,
  weight_decay: float,
  trust_coefficient: float,
  skip_vectors: bool,
) -> optax.GradientTransformation:
  """Returns layer-wise adaptive rate scaling (You et al., 2017).

  A layer's gradient, with decay, is scaled to the norm of the layer's
  parameters times the trust coefficient.  It is left alone if it, or the
  parameters, are all zeros.  Both norms are those of whole layers; parts of a
  gradient that a codec holds back are not in them.  The published rule uses the
  sum of the gradient's norm and the decay's instead of the norm of their sum.
  """
  _check_nesterov(nesterov, momentum)
  # Biases start at zero: adapted, they would take a whole step first and none
  # afterwards.
  adapted = _matrices if skip_vectors else True
  return optax.lars(
    1.0,
    weight_decay=weight_decay,
    weight_decay_mask=adapted,
    trust_ratio_mask=adapted,
    trust_coefficient=trust_coefficient,
    momentum=momentum,
    nesterov=nesterov,
  )


@declared.check_arguments('optimizer')
def clipped(
  tx: optax.GradientTransformation, *, clip_norm: float
) -> optax.GradientTransformation:
  """Returns an optimizer of gradients that are clipped by global norm.

  Args:
    tx: Optimizer of the clipped gradients.
    clip_norm: Largest norm; `tx` itself is returned if it is infinite.
  """
  if clip_norm == math.inf:
    return tx
  return optax.chain(optax.clip_by_global_norm(clip_norm), tx)


def _matrices(params: Any) -> Any:
  """Returns a mask of the leaves with two dimensions or more."""
  return jax.tree.map(lambda leaf: np.ndim(leaf) > 1, params)


def _dimensions(params: Any) -> Any:
  """Returns which dimensions are a matrix's; None for what is no matrix."""

  def find(path: Any, leaf: Any) -> contrib.MuonDimensionNumbers | None:
    if np.ndim(leaf) < 2 or 'embedding' in jax.tree_util.keystr(path):
      return None
    last = np.ndim(leaf) - 1
    return contrib.MuonDimensionNumbers(tuple(range(last)), last)

  return jax.tree_util.tree_map_with_path(find, params)


def _check_nesterov(nesterov: bool, momentum: float) -> None:
  valid = not nesterov or momentum > 0
  require(valid, 'nesterov', 'False without momentum', nesterov)
