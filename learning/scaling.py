"""Loss scales, so that float16 holds gradients which are small or large.

Losses are multiplied by a power of two before they are differentiated, and so
are gradients, which travel like that and are divided by it, exactly, before
they are applied.  Where one overflows, nothing of it is applied and the scale
halves; it doubles after some updates without (Micikevicius et al., 'Mixed
Precision Training', ICLR 2018).

Who pushes to servers has a scale of its own.  Where gradients are summed among
workers all have the same one: from what they have summed, all decide alike.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from configs import default, sections
from configs.checks import require

_FIRST = 2.0**15
# Losses are summed over examples, of which each has its part in a gradient.
_LEAST, _MOST = 2.0**-8, 2.0**24
_DTYPES = ('float32', 'bfloat16', 'float16')
_KINDS = ('dynamic', 'none')


class Scaling(NamedTuple):
  """A loss scale; plain data.

  Attributes:
    value: What losses are multiplied by, a power of two.
    good: Gradients in turn that were finite, since it has changed.
    grow_after: So many of them double it.
  """

  value: float
  good: int
  grow_after: int

  @property
  def can_fall(self) -> bool:
    """Whether a gradient that is not finite may be for a scale too large."""
    return self.value > _LEAST

  def after(self, *, finite: bool) -> 'Scaling':
    """Returns the next one, after a gradient that is finite or not."""
    if not finite:
      return self._replace(value=max(self.value / 2, _LEAST), good=0)
    if self.good + 1 < self.grow_after:
      return self._replace(good=self.good + 1)
    return self._replace(value=min(self.value * 2, _MOST), good=0)


def factor(scaling: Scaling | None) -> float:
  """Returns what losses are multiplied by."""
  return scaling.value if scaling else 1.0


def of(scalings: Sequence[Scaling], worker: int) -> Scaling | None:
  """Returns a worker's of those that all have; None if there are none."""
  return scalings[worker % len(scalings)] if scalings else None


def check(scalings: Sequence[Scaling], worker: int, what: str) -> None:
  """Raises unless what is not finite may be for a loss scale too large.

  Args:
    scalings: As of `of`.
    worker: Whose it is.
    what: Is not finite.

  Raises:
    FloatingPointError: If there is no scale, or no smaller one.
  """
  own = of(scalings, worker)
  if own is None or not own.can_fall:
    scaled = f', with losses multiplied by {own.value:g}' if own else ''
    raise FloatingPointError(f'{what} is not finite{scaled}.')


def make(config: ConfigDict, *, own_task: bool) -> Scaling | None:
  """Returns the scale that a run starts with, as its config says; or None.

  Args:
    config: Of a run that learns something.
    own_task: Whether the task is not of the config: it may compute in float16.

  Raises:
    ValueError: If the config makes no sense; names the field.
  """
  own = config.precision
  dtype, kind = own.dtype, own.loss_scaling
  field = 'config.precision.dtype'
  require(dtype in _DTYPES, field, f'one of {list(_DTYPES)}', dtype)
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
    sections.check_default(config, default.get_config(), unused, reason)
    return None
  least = 'at least 1'
  require(
    own.grow_after > 0, 'config.precision.grow_after', least, own.grow_after
  )
  return Scaling(_FIRST, 0, own.grow_after)
