"""Loss scales, so that float16 holds gradients which are small or large.

Losses are multiplied by a power of two before they are differentiated.
Gradients travel multiplied by it and are divided by it, exactly, before they
are applied.  A gradient that overflows is not applied, and halves the scale;
the scale doubles after some updates without overflow (Micikevicius et al.,
'Mixed Precision Training', ICLR 2018).

A worker that pushes to servers has a scale of its own.  Workers that take part
in an allreduce have the same one, and change it alike, as all see the same sum.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from configs import sections
from configs.checks import require

_FIRST = 2.0**15
# Losses are sums over examples, so that their scales may be small.
_LEAST, _MOST = 2.0**-8, 2.0**24
_KINDS = ('dynamic', 'none')


class Scaling(NamedTuple):
  """A loss scale; plain data.

  Attributes:
    value: Factor of losses, a power of two.
    good: Number of finite gradients in a row since the value has changed.
    grow_after: Number of finite gradients in a row that doubles the value.
  """

  value: float
  good: int
  grow_after: int

  @property
  def can_fall(self) -> bool:
    """True if the loss scale is above its minimum, so that it can be halved."""
    return self.value > _LEAST

  def after(self, *, finite: bool) -> 'Scaling':
    """Returns the loss scale after another gradient, finite or not.

    Halves after a gradient that is not finite, and doubles after `grow_after`
    finite ones in a row, but stays between 2^-8 and 2^24.
    """
    if not finite:
      return self._replace(value=max(self.value / 2, _LEAST), good=0)
    if self.good + 1 < self.grow_after:
      return self._replace(good=self.good + 1)
    return self._replace(value=min(self.value * 2, _MOST), good=0)


def factor(scaling: Scaling | None) -> float:
  """Returns the factor of losses; 1 without scaling."""
  return scaling.value if scaling else 1.0


def worker_scaling(scalings: Sequence[Scaling], worker: int) -> Scaling | None:
  """Returns a worker's loss scale.

  Args:
    scalings: Loss scale of each worker, or one for all; [] without scaling.
  """
  return scalings[worker % len(scalings)] if scalings else None


def check(scalings: Sequence[Scaling], worker: int, what: str) -> None:
  """Raises FloatingPointError if a smaller loss scale cannot help.

  Args:
    scalings: Loss scale of each worker, or one for all; [] without scaling.
    what: Name of the numbers, for the message.

  Raises:
    FloatingPointError: If there is no loss scale, or no smaller one.
  """
  own = worker_scaling(scalings, worker)
  if own is None or not own.can_fall:
    scaled = f', with losses multiplied by {own.value:g}' if own else ''
    raise FloatingPointError(f'{what} is not finite{scaled}.')


def make(config: ConfigDict, *, own_task: bool) -> Scaling | None:
  """Returns the initial loss scale of a run; None without scaling.

  Args:
    own_task: Whether the task is not that of the config; it may then compute in
      float16.

  Raises:
    ValueError: If settings contradict each other; names the field.
  """
  own = config.precision
  dtype, kind = own.dtype, own.loss_scaling
  field = 'config.precision.loss_scaling'
  if dtype == 'float16':
    expected = "'dynamic', or 'none' to go without, of gradients in float16"
    require(kind in _KINDS, field, expected, kind)
  else:
    wires = config.wire.dense, config.wire.sparse
    may = own_task or 'float16' in [wire.dtype for wire in wires]
    expected = (
      "'dynamic', 'none' or ''" if may else "'', as no gradient is in float16"
    )
    require(not kind or (may and kind in _KINDS), field, expected, kind)
  if kind != 'dynamic':
    reason = f'{field} is {kind!r}'
    unused = ('precision.grow_after',)
    sections.check_default(config, unused, reason)
    return None
  return Scaling(_FIRST, 0, own.grow_after)
