"""Roofline model of the times at which gradients of two models appear.

The models are AlexNet and ResNet-50. A layer multiplies once in the forward
pass, and twice in the backward pass; the first layer once, as it needs no
gradient of its input. A product takes as long as its multiplications or as its
bytes (Williams et al., 'Roofline: An Insightful Visual Performance Model',
2009), of weights, inputs and outputs; normalisation and activation pass over
the outputs. Poolings, the loss and the optimiser are left out.

Only shares of an iteration's time are used.  The GPU is a V100: 15.7e12
floating-point operations and 900e9 bytes a second, from memory of its data
sheet; numbers have two bytes.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from configs.checks import require

_FLOPS, _BPS = 15.7e12, 900e9
_ITEM, _LEAF_ITEM = 2, 4  # Bytes of a number in computations; of a parameter.
_FORWARD_PASSES, _BACKWARD_PASSES = 3, 5  # Over the outputs.


class Op(NamedTuple):
  """A convolution with its normalisation, or a dense layer.

  Attributes:
    leaves: Size of each parameter, numbers.
    products: Multiplications of an example in the forward pass.
    inputs: Input numbers of an example.
    outputs: Output numbers of an example.
  """

  leaves: Sequence[int]
  products: int
  inputs: int
  outputs: int


class Timed(NamedTuple):
  """Time of an operation, as shares of the iteration.

  Attributes:
    op: The operation.
    forward: Share of its forward pass.
    backward: Share of its backward pass.
  """

  op: Op
  forward: float
  backward: float


def profile(
  model: str, batch: int, *, flops: float = _FLOPS
) -> list[tuple[int, float]]:
  """Returns the sizes of a model's gradients and the times when they are ready.

  Computed from a roofline model, without running anything.

  Args:
    model: 'alexnet' or 'resnet50', for 224 x 224 pixels, 1000 classes, with
      batch normalisation.
    batch: Examples of a batch, at least 1.  The larger it is, the less the time
      for reading weights counts.
    flops: Floating-point operations per second of the GPU.

  Returns:
    Pairs of bytes and time, one per parameter, in the order of the backward
    pass.  Times are fractions of an iteration's forward and backward pass, at
    most 1.

  Raises:
    ValueError: If there is no such model, or no example.
  """
  spent = timed(model, batch, flops=flops)
  left, found = sum(each.backward for each in spent), []
  for number, each in reversed([*enumerate(spent)]):
    left -= each.backward
    ready = min(1 - left, 1.0) if number else 1.0  # Exact at the end.
    found += [(_LEAF_ITEM * size, ready) for size in reversed(each.op.leaves)]
  return found


def timed(model: str, batch: int, *, flops: float = _FLOPS) -> list[Timed]:
  """Returns the times of all layers, the first one first: see `profile`."""
  require(model in _MODELS, 'model', f'one of {[*_MODELS]}', model)
  require(batch >= 1, 'batch', 'at least 1', batch)
  seconds = []
  for number, op in enumerate(_MODELS[model]()):
    moved = sum(op.leaves) + batch * (op.inputs + op.outputs)
    product_s = max(2 * batch * op.products / flops, _ITEM * moved / _BPS)
    pass_s = _ITEM * batch * op.outputs / _BPS
    forward_s = product_s + _FORWARD_PASSES * pass_s
    backward_s = (2 if number else 1) * product_s + _BACKWARD_PASSES * pass_s
    seconds.append((op, forward_s, backward_s))
  total_s = sum(forward_s + backward_s for _, forward_s, backward_s in seconds)
  return [
    Timed(op, forward_s / total_s, backward_s / total_s)
    for op, forward_s, backward_s in seconds
  ]


def _alexnet() -> list[Op]:
  # Channels, kernel, pixels before and after.
  shapes = [(64, 11, 224, 55), (192, 5, 27, 27), (384, 3, 13, 13)]
  shapes += [(256, 3, 13, 13), (256, 3, 13, 13)]
  features, found = 3, []
  for channels, kernel, before, after in shapes:
    found.append(_conv(features, channels, kernel, before, after))
    features = channels
  widths = (features * 6 * 6, 4096, 4096, 1000)
  return [*found, *(_dense(*pair) for pair in itertools.pairwise(widths))]


def _resnet50() -> list[Op]:
  found, features, pixels = [_conv(3, 64, 7, 224, 112)], 64, 56
  for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
    out = 4 * channels
    for block in range(blocks):
      before, first = pixels, block == 0
      pixels //= 2 if first and channels > 64 else 1
      if first:
        found.append(_conv(features, out, 1, before, pixels))
      found += [
        _conv(features, channels, 1, before, before),
        _conv(channels, channels, 3, before, pixels),
        _conv(channels, out, 1, pixels, pixels),
      ]
      features = out
  return [*found, _dense(features, 1000)]


def _conv(features: int, channels: int, kernel: int, *pixels: int) -> Op:
  before, after = (each**2 for each in pixels)
  weights = kernel**2 * features * channels
  return Op(
    (weights, channels, channels),
    weights * after,
    features * before,
    channels * after,
  )


def _dense(features: int, out: int) -> Op:
  weights = features * out
  return Op((weights, out), weights, features, out)


_MODELS: dict[str, Callable[[], list[Op]]] = {
  'alexnet': _alexnet,
  'resnet50': _resnet50,
}
