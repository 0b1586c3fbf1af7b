"""Optimisers by name, from optax.

They are built with learning rate 1 and their result is multiplied by the rate
of the moment, which is the same thing for transformations that end in a
scaling by the learning rate.  LARS does not: its momentum then holds steps
before that scaling, as SGD's does here.
"""

import math

import optax

from configs.checks import require


def sgd(
  *, momentum: float, nesterov: bool, weight_decay: float
) -> optax.GradientTransformation:
  """Returns stochastic gradient descent; decay is added to the gradient."""
  _check_range('momentum', momentum)
  _check_decay(weight_decay)
  _check_nesterov(nesterov, momentum)
  return optax.chain(
    optax.add_decayed_weights(weight_decay)
    if weight_decay
    else optax.identity(),
    optax.sgd(1.0, momentum=momentum or None, nesterov=nesterov),
  )


def adamw(
  *, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """Returns Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
  _check_range('b1', b1)
  _check_range('b2', b2)
  _check_positive('eps', eps)
  _check_decay(weight_decay)
  return optax.adamw(1.0, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def lars(
  *,
  momentum: float,
  nesterov: bool,
  weight_decay: float,
  trust_coefficient: float,
) -> optax.GradientTransformation:
  """Returns layer-wise adaptive rate scaling (You et al., 2017)."""
  _check_range('momentum', momentum)
  _check_decay(weight_decay)
  _check_positive('trust_coefficient', trust_coefficient)
  _check_nesterov(nesterov, momentum)
  return optax.lars(
    1.0,
    weight_decay=weight_decay,
    trust_coefficient=trust_coefficient,
    momentum=momentum,
    nesterov=nesterov,
  )


def clipped(
  tx: optax.GradientTransformation, *, clip_norm: float
) -> optax.GradientTransformation:
  """Returns `tx` of gradients whose global norm is at most `clip_norm`.

  Args:
    tx: From a function above.
    clip_norm: Above 0; infinity clips nothing.

  Raises:
    ValueError: If `clip_norm` is out of range.
  """
  require(clip_norm > 0, 'clip_norm', 'more than 0', clip_norm)
  if clip_norm == math.inf:
    return tx
  return optax.chain(optax.clip_by_global_norm(clip_norm), tx)


def _check_nesterov(nesterov: bool, momentum: float) -> None:
  valid = not nesterov or momentum > 0
  require(valid, 'nesterov', 'False without momentum', nesterov)


def _check_positive(name: str, value: float) -> None:
  require(0 < value < math.inf, name, 'a number above 0', value)


def _check_range(name: str, value: float) -> None:
  require(0 <= value < 1, name, 'at least 0, below 1', value)


def _check_decay(value: float) -> None:
  require(0 <= value < math.inf, 'weight_decay', 'at least 0', value)
