"""The best weights of given trees, in floating point.

Trees that share links can be used at most as fast as the links allow:
`loads . w <= capacity`.  A linear program says how much of each to use.  An
interior-point method solves it (Mehrotra's predictor and corrector), for of
thousands of equal links and trees, which make a simplex method stall, it needs
no more than some tens of steps.  A step costs O(m K^2) in one matrix product.
"""

from collections.abc import Iterator

import numpy as np

_GAP = 1e-7  # Between weights and prices, relative, at which they will do.
_STEPS = 100
_REGULARIZATION = 1e-12  # Of a matrix with ones on its diagonal.
_REFINEMENTS = 8
_REACH = 0.99  # Of the way to where a variable vanishes.


def best(
  loads: np.ndarray, capacity: np.ndarray, roots: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the weights that make the most of the trees, and the proof.

  The weights have the largest sum, or with `roots` the largest sum per root,
  which is then the same for every root.  Whatever the steps come to, the
  weights are at least 0 and feasible, and the prices prove a bound, both up to
  rounding: `capacity . prices` is at least the optimum.  The two differ by at
  most 2e-7 of it, unless rounding (of capacities that differ by many orders of
  magnitude) or the bound on the steps ends the method before; so a caller who
  needs to know compares them.  A tree that equals an earlier one gets 0, and so
  do those not worth their price, if that costs no more than 1e-7 of the rate;
  of the rest, the optimum is in the middle of all optima, not of few trees.

  Args:
    loads: How often each tree uses each link, at least 0, [m, K].
    capacity: Of each link, above 0, [m].
    roots: Of each tree, integers [K]; or None if roots do not matter.

  Returns:
    The weights [K], in the unit of the capacities, and the prices [m] >= 0 of
    the links, at which the cheapest tree costs 1, or the cheapest trees of
    all roots do together.

  Raises:
    ValueError: If there is no tree, or one that uses no link, or what is
      passed has another shape, or values out of range.
  """
  loads, capacity = np.asarray(loads), np.asarray(capacity, np.float64)
  trees = loads.shape[1] if loads.ndim == 2 else 0
  roots = np.zeros(trees, np.int64) if roots is None else np.asarray(roots)
  _check(loads, capacity, roots)
  program = _Program(loads, capacity, roots)
  most, least = 0.0, np.inf
  for step, state in enumerate(program.path()):
    x, y, z = state
    weights, prices = program.weights(x), program.prices(y)
    if program.rate(weights) > most:
      most, chosen = program.rate(weights), weights
    if prices.sum() < least:
      least, proof = prices.sum(), prices
    if least - most <= _GAP * least or step == _STEPS:
      break
  # Without the trees whose loss outweighs their weight.
  lean = program.weights(np.where(x > z, x, 0))
  if program.rate(lean) >= (1 - _GAP) * most:
    chosen = lean
  return program.expanded(chosen), proof / capacity


def _check(loads: np.ndarray, capacity: np.ndarray, roots: np.ndarray) -> None:
  if loads.ndim != 2 or not loads.size:
    raise ValueError(
      f'loads: expected links and trees [m, K], got shape {loads.shape}.'
    )
  links, trees = loads.shape
  if capacity.shape != (links,):
    raise ValueError(
      f'capacity: expected shape {(links,)}, got {capacity.shape}.'
    )
  if roots.shape != (trees,):
    raise ValueError(f'roots: expected shape {(trees,)}, got {roots.shape}.')
  if not (np.isfinite(loads).all() and loads.min() >= 0):
    raise ValueError('loads: expected numbers of at least 0, got others.')
  if not (np.isfinite(capacity).all() and capacity.min() > 0):
    raise ValueError('capacity: expected numbers above 0, got others.')
  unused = np.flatnonzero(~loads.any(0))
  if len(unused):
    raise ValueError(f'loads: expected links, got none for tree {unused[0]}.')


class _Program:
  """The x >= 0 of largest x[-1] with `rows . x <= limits`.

  x are the weights, each as a multiple of its weight when all trees of a root
  carry the same, and the rate per root, as a multiple of the rate then.  What
  all trees of a root use of a link is an entry of the rate, not of the trees:
  otherwise the trees of a network in which every tree must use most links are
  alike but for rounding.
  """

  def __init__(
    self, loads: np.ndarray, capacity: np.ndarray, roots: np.ndarray
  ) -> None:
    _, groups = np.unique(roots, return_inverse=True)
    first = _distinct(np.vstack([groups, loads]).T)
    self._first = first[np.argsort(groups[first], kind='stable')]
    self._trees = len(roots)
    self._groups = groups[self._first]
    self._starts = np.flatnonzero(np.diff(self._groups, prepend=-1))
    self._shares = loads[:, self._first] / capacity[:, None]
    self._links, trees = self._shares.shape
    count = len(self._starts)

    equal = (1 / np.bincount(self._groups))[self._groups]
    rate = 1 / (self._shares @ equal).max()
    self._unit = equal * rate
    common = np.minimum.reduceat(self._shares, self._starts, axis=1)
    rows = np.empty((self._links, trees + 1))
    rows[:, :-1] = (self._shares - common[:, self._groups]) * self._unit
    rows[:, -1] = common.sum(1) * rate
    self._kept = _distinct(rows)
    carried = np.zeros((count, trees + 1))
    carried[self._groups, np.arange(trees)] = -equal
    carried[:, -1] = 1
    self._rows = np.vstack([rows[self._kept], carried])
    self._limits = np.repeat([1.0, 0.0], [len(self._kept), count])

  def path(self) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields better and better x, prices of rows and losses of x, or ends."""
    rows, limits = self._rows, self._limits
    links, width = len(self._kept), rows.shape[1]
    count = len(rows) - links
    gain = np.zeros(width)
    gain[-1] = 1
    x = np.repeat([0.5, 0.25], [width - 1, 1])
    slack = limits - rows @ x
    y = np.full(len(rows), 1.5 / count)
    y[:links] = 1 / slack[:links]
    y[:links] /= y[:links].sum()
    z = np.maximum(rows.T @ y - gain, 0.1 / width)
    state = x, slack, y, z
    while True:
      yield state[0], state[2], state[3]
      try:
        # Overflow shows in the result.
        with np.errstate(all='ignore'):
          state = _step(rows, limits, gain, *state)
      except np.linalg.LinAlgError:
        return
      if not all((part > 0).all() & np.isfinite(part).all() for part in state):
        return

  def weights(self, x: np.ndarray) -> np.ndarray:
    """Returns the weights of distinct trees, made feasible."""
    weights = x[:-1] * self._unit
    # Not a number if a root has no weight.
    with np.errstate(invalid='ignore'):
      sums = np.add.reduceat(weights, self._starts)
      weights *= (sums.min() / sums)[self._groups]
      return weights / (self._shares @ weights).max()

  def rate(self, weights: np.ndarray) -> float:
    return np.add.reduceat(weights, self._starts).min()

  def prices(self, y: np.ndarray) -> np.ndarray:
    """Returns the prices of all that each link carries, made to prove."""
    prices = np.zeros(self._links)
    prices[self._kept] = y[: len(self._kept)]
    cheapest = np.minimum.reduceat(prices @ self._shares, self._starts)
    return prices / cheapest.sum()

  def expanded(self, weights: np.ndarray) -> np.ndarray:
    """Returns the weights of all trees, 0 for the later of equal ones."""
    full = np.zeros(self._trees)
    full[self._first] = weights
    return full


def _distinct(rows: np.ndarray) -> np.ndarray:
  """Returns the numbers of the rows that equal no earlier one."""
  places = {}
  for place, row in enumerate(np.ascontiguousarray(rows)):
    places.setdefault(row.tobytes(), place)
  return np.array([*places.values()])


def _step(
  rows: np.ndarray,
  limits: np.ndarray,
  gain: np.ndarray,
  x: np.ndarray,
  slack: np.ndarray,
  y: np.ndarray,
  z: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns the next x, slack of rows, prices of rows and losses of x."""
  total = len(x) + len(y)
  mean = (x @ z + slack @ y) / total
  scaled = rows * np.sqrt(y / slack)[:, None]
  matrix = scaled.T @ scaled
  diagonal = np.arange(len(x))
  matrix[diagonal, diagonal] += z / x
  unit = 1 / np.sqrt(matrix[diagonal, diagonal])
  matrix *= unit
  matrix *= unit[:, None]
  regular = matrix.copy()
  regular[diagonal, diagonal] += _REGULARIZATION
  inverse = np.linalg.inv(regular)
  beyond = limits - rows @ x - slack
  lacking = gain - rows.T @ y + z

  def direction(to_y: np.ndarray, to_z: np.ndarray) -> tuple[np.ndarray, ...]:
    # Newton's, by which slack * y changes by to_y and x * z by to_z.
    right = lacking + to_z / x - rows.T @ ((to_y - y * beyond) / slack)
    right *= unit
    dx = inverse @ right
    for _ in range(_REFINEMENTS):
      dx += inverse @ (right - matrix @ dx)
    dx *= unit
    ds = beyond - rows @ dx
    return dx, ds, (to_y - y * ds) / slack, (to_z - z * dx) / x

  def moved(by: tuple[np.ndarray, ...], reach: float) -> tuple[np.ndarray, ...]:
    dx, ds, dy, dz = by
    primal = min(1.0, reach * min(_room(x, dx), _room(slack, ds)))
    dual = min(1.0, reach * min(_room(y, dy), _room(z, dz)))
    return x + primal * dx, slack + primal * ds, y + dual * dy, z + dual * dz

  dx, ds, dy, dz = by = direction(-slack * y, -x * z)
  ahead = moved(by, 1.0)
  predicted = (ahead[0] @ ahead[3] + ahead[1] @ ahead[2]) / total
  # Products much smaller than the gap asked for only cost digits.
  target = max((predicted / mean) ** 3 * mean, 0.1 * _GAP / total)
  by = direction(target - slack * y - ds * dy, target - x * z - dx * dz)
  return moved(by, max(_REACH, 1 - mean))


def _room(values: np.ndarray, change: np.ndarray) -> float:
  """Returns how often the change can be made before a value vanishes."""
  fastest = (-change / values).max()
  return 1 / fastest if fastest > 0 else np.inf
