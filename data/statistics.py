"""Statistics of inputs, by which they are standardised."""

import numpy as np

_CHUNK = 1 << 22  # Numbers that are added at once.


def of_channels(
  inputs: np.ndarray,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Returns mean and standard deviation of each channel, the last axis.

  Uint8 inputs are scaled to 0..1 first.  The deviation of a constant channel is
  1.

  Args:
    inputs: Uint8 or float32 [N, ..., C].
  """
  rows = inputs.reshape(-1, inputs.shape[-1])
  step = max(_CHUNK // rows.shape[1], 1)
  chunks = [rows[i : i + step] for i in range(0, len(rows), step)]
  mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in chunks) / len(
    rows
  )
  squares = sum(((chunk - mean) ** 2).sum(axis=0) for chunk in chunks)
  std = np.sqrt(squares / len(rows))
  scale = 1 / 255 if inputs.dtype == np.uint8 else 1.0
  std = np.where(std > 0, std * scale, 1.0)
  return tuple((mean * scale).tolist()), tuple(std.tolist())
