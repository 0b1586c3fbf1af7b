"""Optimal weights of given trees, in floating point.

The weights w of trees that share links satisfy `loads . w <= capacity`, and a
linear program maximises their sum.  An interior-point method solves it
(Mehrotra's predictor and corrector): with thousands of equal links and trees,
on which a simplex method stalls, it takes some tens of steps.  A step costs
O(m K^2) for a matrix product and O(K^3) to solve a system.  All operations give
the same bits on every machine (`algorithms.definite`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from topology.algorithms import definite, stopping

_GAP = 1e-7  # Relative gap between weights and prices at which steps end.
_STEPS = 100
_REGULARIZATION = 1e-12  # Added to a diagonal of ones.
_REFINEMENTS = 8  # Refinements of a solution, at most.
_EXACT = 1e-13  # Relative residual at which refinement ends.
_REACH = 0.99  # Share of the step that makes a variable vanish.


def best(
  loads: np.ndarray,
  capacity: np.ndarray,
  roots: np.ndarray | None = None,
  stop: stopping.Stop = stopping.never,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns optimal weights of the trees, and prices that prove a bound.

  The weights have the largest sum, or with `roots` the largest sum per root,
  which is then the same for every root.  In every case the weights are at least
  0 and feasible, and the prices prove a bound, both up to rounding: `capacity .
  prices` is at least the optimum.  The two differ by at most 2e-7 of it, unless
  rounding (with capacities of very different magnitude), the limit of steps or
  `stop` ends the method earlier; compare them where this matters.  The weight
  of a tree that equals an earlier one is 0.  Trees that are not worth their
  price have weight 0, too, if that costs at most 1e-7 of the rate.  Otherwise
  the optimum is in the middle of all optima, and uses many trees.

  Args:
    loads: Number of times that each tree uses each link, integers [m, K]; each
      tree uses a link.
    capacity: Capacity of each link, above 0, [m].
    roots: Root of each tree, integers [K]; None if roots do not matter.
    stop: Function that returns True to end the method with its best weights.

  Returns:
    The weights [K], in the unit of the capacities, and the prices [m] >= 0 of
    the links, at which the cheapest tree costs 1, or with `roots` the cheapest
    trees of all roots together.

  Raises:
    ValueError: If an argument is not of this kind.
  """
  loads, capacity = np.asarray(loads), np.asarray(capacity, np.float64)
  trees = loads.shape[1] if loads.ndim == 2 else 0
  roots = np.zeros(trees, np.int64) if roots is None else np.asarray(roots)
  _check(loads, capacity, roots)
  program = _Program(loads, capacity, roots)
  most, least = 0.0, np.inf
  for step, state in enumerate(program.path(stop)):
    weights, prices = program.weights(state.x), program.prices(state.y)
    if program.rate(weights) > most:
      most, chosen = program.rate(weights), weights
    if prices.sum() < least:
      least, proof = prices.sum(), prices
    if least - most <= _GAP * least or step == _STEPS or stop():
      break
  # Without the trees whose loss outweighs their weight.
  lean = program.weights(np.where(state.x > state.z, state.x, 0))
  if program.rate(lean) >= (1 - _GAP) * most:
    chosen = lean
  every = np.zeros(trees)  # The later of equal trees get none.
  every[program.first] = chosen
  return every, proof / capacity


def _check(loads: np.ndarray, capacity: np.ndarray, roots: np.ndarray) -> None:
  if loads.ndim != 2 or not loads.size or not loads.any(0).all():
    raise ValueError(
      'loads: expected links and trees [m, K], and a link for each tree, got '
      f'shape {loads.shape}.'
    )
  links, trees = loads.shape
  whole = loads.min() >= 0 and np.array_equal(loads, np.rint(loads))
  positive = np.isfinite(capacity).all() and (capacity > 0).all()
  for valid, expected in (
    (whole, 'loads: expected whole numbers of at least 0'),
    (
      capacity.shape == (links,) and positive,
      f'capacity: expected {links} > 0',
    ),
    (roots.shape == (trees,), f'roots: expected {trees}'),
  ):
    if not valid:
      raise ValueError(f'{expected}, got others.')


class _State(NamedTuple):
  """Iterate of the interior-point method, with all values above 0."""

  x: np.ndarray  # Variables.
  slack: np.ndarray  # Slack of rows.
  y: np.ndarray  # Prices of rows.
  z: np.ndarray  # Losses of variables.

  def products(self) -> float:
    """Returns the sum of variable times loss and slack times price."""
    return float((self.x * self.z).sum() + (self.slack * self.y).sum())

  def move(self, by: '_State', reach: float) -> '_State':
    """Returns the state after a step along `by` that keeps values positive."""
    room = [_room(now, change) for now, change in zip(self, by, strict=True)]
    primal = min(1.0, reach * min(room[:2]))
    dual = min(1.0, reach * min(room[2:]))
    steps = zip(self, by, (primal, primal, dual, dual), strict=True)
    return _State(*(now + step * change for now, change, step in steps))


class _Program:
  """Linear program: largest x[-1] with `rows . x <= limits`, x >= 0.

  x has the weights, each as a multiple of its weight when all trees of a root
  carry the same, and the rate per root, as a multiple of the rate then.  A use
  of a link that all trees of a root have in common is an entry of the rate, not
  of the trees: otherwise the trees of a network in which every tree must use
  most links differ only by rounding.

  Rows are those of links, then one for each root: its trees carry the rate.
  `first` has the trees that equal no earlier one, by root.
  """

  def __init__(
    self, loads: np.ndarray, capacity: np.ndarray, roots: np.ndarray
  ) -> None:
    _, groups = np.unique(roots, return_inverse=True)
    first = _distinct(np.vstack([groups, loads]).T)
    self.first = first[np.argsort(groups[first], kind='stable')]
    self._groups = groups[self.first]
    self._starts = np.flatnonzero(np.diff(self._groups, prepend=-1))
    loads = loads[:, self.first].astype(np.float64)
    common = np.minimum.reduceat(loads, self._starts, axis=1)
    whole = loads - common[:, self._groups]
    links, trees = whole.shape
    self._capacity, self._common = capacity, common.sum(1)
    self._link, self._tree = np.nonzero(whole)
    self._times = whole[self._link, self._tree]
    self._kept = _distinct(np.column_stack([whole, self._common, capacity]))
    self._whole = definite.Gram(whole[self._kept])

    self._equal = (1 / np.bincount(self._groups))[self._groups]
    rate = 1 / self._used(self._equal).max()
    self._unit = self._equal * rate
    count = len(self._starts)
    place = np.full(links, -1)
    place[self._kept] = np.arange(len(self._kept))
    own = np.flatnonzero(place[self._link] >= 0)
    shares = self._times / capacity[self._link] * self._unit[self._tree]
    rated = self._common[self._kept] * rate / capacity[self._kept]
    rows, each = len(rated), np.arange(count)
    # Row, column and value of all entries that are not 0.
    self._row = np.r_[
      place[self._link[own]], np.arange(rows), rows + self._groups, rows + each
    ]
    self._column = np.r_[
      self._tree[own], np.full(rows, trees), np.arange(trees), 0 * each + trees
    ]
    self._value = np.r_[shares[own], rated, -self._equal, np.ones(count)]
    self._limits = np.repeat([1.0, 0.0], [len(rated), count])
    self._last = np.concatenate([rated, np.ones(count)])
    same = self._groups[:, None] == self._groups
    self._together = same * (self._equal * self._equal[:, None])

  def path(self, stop: stopping.Stop) -> Iterator[_State]:
    """Yields better and better states, or ends."""
    links, width = len(self._kept), len(self._groups) + 1
    gain = np.zeros(width)
    gain[-1] = 1
    x = np.repeat([0.5, 0.25], [width - 1, 1])
    slack = self._limits - self._rows(x)
    y = np.full(len(slack), 1.5 / len(self._starts))
    y[:links] = 1 / slack[:links]
    y[:links] /= y[:links].sum()
    z = np.maximum(self._columns(y) - gain, 0.1 / width)
    state = _State(x, slack, y, z)
    while True:
      yield state
      try:
        # Overflow shows in the result.
        with np.errstate(all='ignore'):
          state = self._step(state, gain, stop)
      except (ValueError, stopping.Stopped):  # It cannot be solved, or in time.
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
      feasible: np.ndarray = weights / self._used(weights).max()
      return feasible

  def rate(self, weights: np.ndarray) -> float:
    """Returns the rate that each root carries."""
    return float(np.add.reduceat(weights, self._starts).min())

  def prices(self, y: np.ndarray) -> np.ndarray:
    """Returns link prices [m], scaled so that the cheapest trees cost 1."""
    prices = np.zeros(len(self._capacity))
    prices[self._kept] = y[: len(self._kept)]
    each = prices / self._capacity
    cost = np.bincount(
      self._tree, self._times * each[self._link], len(self._groups)
    )
    cheapest = np.minimum.reduceat(cost, self._starts).sum()
    scaled: np.ndarray = prices / (cheapest + (self._common * each).sum())
    return scaled

  def _used(self, weights: np.ndarray) -> np.ndarray:
    """Returns the share of each link that weights of equal sum per root use."""
    own = np.bincount(
      self._link, self._times * weights[self._tree], len(self._capacity)
    )
    load: np.ndarray = own + self._common * self.rate(weights)
    used: np.ndarray = load / self._capacity
    return used

  def _rows(self, x: np.ndarray) -> np.ndarray:
    return np.bincount(
      self._row, self._value * x[self._column], len(self._limits)
    )

  def _columns(self, y: np.ndarray) -> np.ndarray:
    return np.bincount(
      self._column, self._value * y[self._row], len(self._groups) + 1
    )

  def _gram(self, weight: np.ndarray, stop: stopping.Stop) -> np.ndarray:
    """`rows.T @ diag(weight) @ rows`."""
    links, size = len(self._kept), len(self._groups) + 1
    matrix = np.empty((size, size))
    matrix[-1] = matrix[:, -1] = self._columns(weight * self._last)
    each = weight[:links] / self._capacity[self._kept] ** 2
    matrix[:-1, :-1] = self._whole.of(each, stop)
    matrix[:-1, :-1] *= self._unit * self._unit[:, None]
    matrix[:-1, :-1] += self._together * weight[links:][self._groups]
    return matrix

  def _step(
    self, state: _State, gain: np.ndarray, stop: stopping.Stop
  ) -> _State:
    """Returns the next state."""
    x, slack, y, z = state
    total = len(x) + len(y)
    mean = state.products() / total
    matrix = self._gram(y / slack, stop)
    diagonal = np.arange(len(x))
    matrix[diagonal, diagonal] += z / x
    unit = 1 / np.sqrt(matrix[diagonal, diagonal])
    matrix *= unit
    matrix *= unit[:, None]
    regular = matrix.copy()
    regular[diagonal, diagonal] += _REGULARIZATION
    factor = definite.Factor(regular, stop)
    beyond = self._limits - self._rows(x) - slack
    lacking = gain - self._columns(y) + z

    def direction(to_y: np.ndarray, to_z: np.ndarray) -> _State:
      # Newton's, by which slack * y changes by to_y and x * z by to_z.
      right = lacking + to_z / x - self._columns((to_y - y * beyond) / slack)
      right *= unit
      dx = factor.solve(right)
      for _ in range(_REFINEMENTS):
        stopping.check(stop)
        rest = right - definite.times(matrix, dx)
        if abs(rest).max() <= _EXACT * abs(right).max():
          break
        dx += factor.solve(rest)
      dx *= unit
      ds = beyond - self._rows(dx)
      return _State(dx, ds, (to_y - y * ds) / slack, (to_z - z * dx) / x)

    by = direction(-slack * y, -x * z)
    predicted = state.move(by, 1.0).products() / (total * mean)
    # Products much smaller than the gap asked for only cost digits.
    target = max(predicted * predicted * predicted * mean, 0.1 * _GAP / total)
    by = direction(
      target - slack * y - by.slack * by.y, target - x * z - by.x * by.z
    )
    return state.move(by, max(_REACH, 1 - mean))


def _distinct(rows: np.ndarray) -> np.ndarray:
  """Returns the numbers of the rows that equal no earlier one."""
  places: dict[bytes, int] = {}
  for place, row in enumerate(np.ascontiguousarray(rows)):
    places.setdefault(row.tobytes(), place)
  return np.array([*places.values()])


def _room(values: np.ndarray, change: np.ndarray) -> float:
  """Returns how often the change can be made before a value vanishes."""
  fastest = float((-change / values).max())
  return 1 / fastest if fastest > 0 else np.inf
