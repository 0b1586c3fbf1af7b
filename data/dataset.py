"""Data sets: two splits of examples, and how to standardise their inputs.

`make(directory=..., ...)` of each data set's module returns it: `directory` is
the folder that has its files, None if the user has named none; data sets
without files do not use it.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

PADDING = -1  # Target of a position that does not count.
_CHUNK = 1 << 22  # Numbers that are checked at once.


class LazyRows(Protocol):
  """Rows of an array that are read when they are indexed."""

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the array."""

  @property
  def dtype(self) -> np.dtype:
    """Dtype of the array."""

  def __len__(self) -> int:
    """Returns the number of rows."""

  def __getitem__(self, rows: Any) -> np.ndarray:
    """Returns rows, given a slice or an array of integers."""


class Split(NamedTuple):
  """Examples, in the order in which the data set stores them.

  Attributes:
    inputs: Images, uint8 or float32 [N, H, W, C], other numbers [N, ..., C], or
      tokens, int32 [N, T].  Those that do not fit into memory are `LazyRows`.
    targets: Classes from 0, int32 [N]; of tokens [N, T], the token that follows
      each, or `PADDING`.  Whatever its loss takes, with a task of one's own.
  """

  inputs: 'np.ndarray | LazyRows'
  targets: 'np.ndarray | LazyRows'


class Dataset(NamedTuple):
  """A training and a test split of one task.

  Attributes:
    train: Examples to learn from.
    test: Examples to measure accuracy on.
    num_classes: Number of classes, or of different tokens.  This and the fields
      below are for `prepare` and for the packaged models; a user's own task may
      leave them out.
    mean: Mean of each channel of the training inputs, of uint8 ones after
      scaling to 0..1.  Empty for tokens.
    std: Standard deviation of each channel, after the same scaling.
    separator: Token id at the start of each document, which keeps the documents
      of a row apart; None if each row is one document.
    bytes_per_token: Mean bytes of text per token; None if unknown.
  """

  train: Split
  test: Split
  num_classes: int = 0
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()
  separator: int | None = None
  bytes_per_token: float | None = None

  @property
  def input_shape(self) -> tuple[int, ...]:
    """Height, width and channels of one example, or its number of tokens."""
    return self.train.inputs.shape[1:]

  def check(self) -> None:
    """Raises ValueError unless both splits have examples, each with a target.

    Of a data set with classes it checks the arrays in memory, too: targets are
    classes, and inputs are finite.  The message names the split and the first
    wrong example.
    """
    for name, split in (('train', self.train), ('test', self.test)):
      inputs, targets = len(split.inputs), len(split.targets)
      if not inputs == targets > 0:
        raise ValueError(
          f'{name}: expected as many targets as inputs, and at least one, got '
          f'{inputs} inputs and {targets} targets.'
        )
      if self.num_classes:
        _check_classes(f'{name}.targets', split.targets, self.num_classes)
        _check_finite(f'{name}.inputs', split.inputs)

  def prepare(self, inputs: jax.Array | np.ndarray) -> Any:
    """Returns standardised inputs, float32 [B, ..., C], or the same tokens.

    With a separator it returns a pair: the tokens, and the number of the
    document that each belongs to, int32 [B, T].  The function is pure.  In a
    compiled step, images are sent to the device as bytes, a quarter of their
    size as floats.

    Args:
      inputs: Rows of a split: uint8 or float32 [B, ..., C], or int32 [B, T] if
        `mean` is empty.

    Raises:
      ValueError: If `inputs` is of another type.
    """
    if not self.mean:
      if inputs.dtype != np.int32:
        raise ValueError(f'inputs: expected int32 tokens, got {inputs.dtype}.')
      tokens = jnp.asarray(inputs)
      if self.separator is None:
        return tokens
      begins = tokens == np.int32(self.separator)
      return tokens, jnp.cumsum(begins, axis=1, dtype=np.int32)
    if inputs.dtype not in (np.uint8, np.float32):
      raise ValueError(
        f'inputs: expected uint8 or float32, got {inputs.dtype}.'
      )
    scale = 1 / 255 if inputs.dtype == np.uint8 else 1.0
    per_channel = (*(1,) * (inputs.ndim - 1), -1)
    mean = np.reshape(np.array(self.mean, np.float32), per_channel)
    std = np.reshape(np.array(self.std, np.float32), per_channel)
    return (jnp.asarray(inputs, np.float32) * scale - mean) / std


def _check_classes(field: str, targets: Any, count: int) -> None:
  """Raises ValueError if a target in memory is no class, nor padding."""
  if not _is_in_memory(targets, 'iu') or not targets.size:
    return
  least = 0 if targets.ndim == 1 else PADDING
  wrong = (targets < least) | (targets >= count)
  if wrong.any():
    place = np.unravel_index(np.argmax(wrong), wrong.shape)
    raise ValueError(
      f'{field}: expected classes from 0 to {count - 1}, got {targets[place]} '
      f'of example {place[0]}.'
    )


def _check_finite(field: str, inputs: Any) -> None:
  """Raises ValueError if an input in memory is NaN or infinite."""
  if not _is_in_memory(inputs, 'f'):
    return
  step = max(_CHUNK // max(inputs[0].size, 1), 1)
  for start in range(0, len(inputs), step):
    rows = inputs[start : start + step]
    wrong = ~np.isfinite(rows)
    if wrong.any():
      place = np.unravel_index(np.argmax(wrong), wrong.shape)
      raise ValueError(
        f'{field}: expected finite numbers, got {rows[place]} in example '
        f'{start + place[0]}.'
      )


def _is_in_memory(array: Any, kinds: str) -> bool:
  """Returns whether an array of one of NumPy's kinds of types is in memory."""
  if not isinstance(array, np.ndarray) or isinstance(array, np.memmap):
    return False
  return array.dtype.kind in kinds
