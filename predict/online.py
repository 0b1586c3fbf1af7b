"""Networks that learn to predict speeds while the run goes on.

A network maps a worker's last observations to how far its next speed is above
its exponential average, all standardised.  With every observation there are a
few steps of Adam on examples drawn from what is kept, so that the cost is
bounded.  The loss is Huber's ('Robust estimation of a location parameter',
1964), as now and then an iteration is slow for no reason that can be known.
The training is series-parallel: inputs are observed speeds, never predicted.

What a network expects is one opinion of several: where speeds change their ways
it may be worse than no network.  predict/gate.py weighs it against averages.

All workers share the parameters, and what differs between them is in the
standardisation.  A network for each was 1 % better or worse, depending on the
trace; it costs more, and learns nothing for a worker that has just come.

Everything that is kept between calls is in NumPy arrays, so that a copy of the
state goes on bit for bit.  What is compiled is compiled by `make`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from predict import gate, history, predictor

_MOST_KEPT = 200_000  # Observations of all workers: about 10 MB.
_ROBUST = 0.25  # Deviations up to which the loss is a square.
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Of Adam.


class Shape(Protocol):
  """Of a network: a frozen dataclass, as it is an argument of compilation.

  Attributes:
    window: How many observations the network looks at.
  """

  window: int

  def build(self, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a network that maps float32 [B, window, F + 2] to [B]."""


@dataclasses.dataclass(frozen=True)
class Fitting:
  """How a network is trained.

  Attributes:
    steps: Steps of Adam per observation.
    minibatch: Examples of a step.
    learning_rate: Of Adam.
    decay: Weight decay, decoupled: times parameters and learning rate.
    averaging: Weight of the newest parameters in those that predict.
  """

  is_state = True  # Plain data: checkpoints hold it.

  steps: int
  minibatch: int
  learning_rate: float
  decay: float
  averaging: float


@dataclasses.dataclass
class Online:
  """State of a network and of what it learns from.

  Attributes:
    shape: Of the network.
    fitting: How it is trained.
    seed: Of the parameters and of the draws.
    needed: Observations of a worker from which on the network predicts.
    history: What has been observed.
    gate: How wrong the network and the averages were.
    weights: Float32 [4, p]: parameters, the averages of their gradients and of
      the squares of these, and the average of the parameters.
    fits: How many observations have been learnt from.
    predicted: Float64 [n], what `predict` returns.
  """

  is_state = True  # Plain data: checkpoints hold it.

  shape: Shape
  fitting: Fitting
  seed: int
  needed: int
  history: history.History
  gate: gate.Gate
  weights: np.ndarray
  fits: int
  predicted: np.ndarray

  @property
  def fallback(self) -> int:
    """For how many workers averages predict alone: too little history."""
    count = self.history.count
    return int(((count > 0) & (count < self.needed)).sum())

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    """Takes an observation in, learns, and predicts.  O(n + bounded)."""
    if not len(self.history.add(speeds, factors)):
      return
    self.gate.observe(np.asarray(speeds, np.float64))
    # A generator that counts, so that no state of it need be kept.
    key = np.array([self.seed, self.fits], np.uint64)
    samples = self.history.samples(
      np.random.Generator(np.random.Philox(key=key)),
      self.fitting.steps * self.fitting.minibatch,
      self.shape.window,
    )
    expected = self.history.average.copy()
    if samples is not None:
      gain = self._advance(*samples)
      self.fits += 1
      ready = self.history.count >= self.needed
      gain = np.where(ready, gain, 0) * self.history.deviation()
      expected = self.history.within(expected + gain)
    self.predicted = self.history.within(self.gate.mix(expected))

  def predict(self) -> np.ndarray:
    """Returns the next speeds, float64 [n]; NaN if never observed.

    They are never beyond the slowest and the fastest that the worker has been.
    """
    return self.predicted.copy()

  def reset(self, worker: int) -> None:
    """Forgets a worker's history; what all have taught the network stays."""
    self.history.reset(worker)
    self.gate.reset(worker)
    self.predicted[worker] = np.nan

  def _advance(self, windows: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Fits the network to samples and returns what it expects, float64 [n]."""
    batches = (self.fitting.steps, self.fitting.minibatch)
    with _on_cpu():
      weights, expected = _fit_and_predict(
        self.shape,
        self.fitting,
        self.weights,
        np.int32(self.fits),
        windows.reshape(*batches, *windows.shape[1:]),
        gains.reshape(batches),
        self.history.latest(self.shape.window),
      )
    self.weights = np.array(weights)
    return np.asarray(expected, np.float64)


def make(
  shape: Shape,
  *,
  num_workers: int,
  num_factors: int,
  seed: int,
  smoothing: float,
  quick: float,
  discount: float,
  kept: int,
  needed: int,
  steps: int,
  minibatch: int,
  learning_rate: float,
  decay: float,
  averaging: float,
) -> Online:
  """Returns a predictor whose network is not trained yet, but compiled.

  Args:
    shape: Of the network.
    num_workers: Number of workers, n.
    num_factors: Number of driving factors, F; may be 0.
    seed: Of the parameters and of the draws, 0 to 2^64 - 1.
    smoothing: Weight of the newest speed in the average that the network adds
      to.
    quick: Weight of the newest speed in another average.
    discount: Weight of the newest squared error where the network, the two
      averages and the last speed are weighed.
    kept: Observations per worker that are learnt from, the newest; fewer if
      there are so many workers that it would be over 200,000 in all.
    needed: Observations of a worker from which on the network predicts.
    steps: Steps of Adam per observation.
    minibatch: Examples of a step.
    learning_rate: Of Adam, above 0.
    decay: Weight decay, decoupled; at least 0.
    averaging: Weight of the newest parameters in those that predict, above 0,
      at most 1, which is no averaging.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  predictor.check_integer('kept', kept, at_least=shape.window + 1)
  predictor.check_integer('needed', needed, at_least=shape.window + 1)
  predictor.check_integer('steps', steps, at_least=1)
  predictor.check_integer('minibatch', minibatch, at_least=1)
  predictor.check_share('learning_rate', learning_rate)
  predictor.check_share('averaging', averaging)
  if not 0 <= decay < 1:
    raise ValueError(f'decay: expected 0 <= decay < 1, got {decay!r}.')
  with _on_cpu():
    params = _parameters(shape, seed)
  made = Online(
    shape=shape,
    fitting=Fitting(steps, minibatch, learning_rate, decay, averaging),
    seed=seed,
    needed=needed,
    history=history.make(
      num_workers=num_workers,
      num_factors=num_factors,
      kept=max(shape.window + 1, min(kept, _MOST_KEPT // num_workers)),
      smoothing=smoothing,
    ),
    gate=gate.make(
      num_workers=num_workers, quick=quick, slow=smoothing, discount=discount
    ),
    weights=np.stack([params, 0 * params, 0 * params, params]),
    fits=0,
    predicted=np.full(num_workers, np.nan),
  )
  _compile(made)
  return made


def _on_cpu() -> contextlib.AbstractContextManager[None]:
  """Returns a context for networks that are too small for an accelerator."""
  return jax.default_device(jax.local_devices(backend='cpu')[0])


def _compile(made: Online) -> None:
  """Runs the program once, so that no later call compiles."""
  size = made.fitting.steps * made.fitting.minibatch
  columns = made.history.rows.shape[-1]
  windows = np.zeros((size, made.shape.window, columns), np.float32)
  weights = made.weights
  made._advance(windows, np.zeros(size, np.float32))
  made.weights = weights


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit_and_predict(
  shape: Shape,
  fitting: Fitting,
  weights: jax.Array,
  fits: jax.Array,
  windows: jax.Array,
  gains: jax.Array,
  latest: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Takes the steps of one observation, then predicts for all workers.

  Args:
    shape: Of the network.
    fitting: How it is trained.
    weights: Float32 [4, p], as in `Online`.
    fits: Int32, how often this was called before.
    windows: Float32 [steps, minibatch, window, F + 2].
    gains: Float32 [steps, minibatch], what is to be learnt.
    latest: Float32 [n, window, F + 2], what is predicted from.

  Returns:
    The new weights, and float32 [n], how far speeds are above the average.
  """
  network = _network(shape)

  def loss(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.huber_loss(network(params, x), y, delta=_ROBUST).mean()

  def step(
    weights: jax.Array, batch: tuple[jax.Array, jax.Array, jax.Array]
  ) -> tuple[jax.Array, None]:
    number, x, y = batch
    params, mean, square, smooth = weights
    gradient = jax.grad(loss)(params, x, y)
    mean += (1 - _BETA1) * (gradient - mean)
    square += (1 - _BETA2) * (gradient**2 - square)
    size = jnp.sqrt(square / (1 - _BETA2**number)) + _EPSILON
    change = mean / (1 - _BETA1**number) / size + fitting.decay * params
    params -= fitting.learning_rate * change
    smooth += fitting.averaging * (params - smooth)
    return jnp.stack([params, mean, square, smooth]), None

  numbers = fits * fitting.steps + jnp.arange(1, fitting.steps + 1)
  batches = (numbers.astype(jnp.float32), windows, gains)
  weights, _ = jax.lax.scan(step, weights, batches)
  return weights, network(weights[3], latest)


def _parameters(shape: Shape, seed: int) -> np.ndarray:
  """Initial parameters, float32 [p]."""
  seed32 = int(np.random.SeedSequence(seed).generate_state(1)[0])
  state = nnx.state(shape.build(nnx.Rngs(seed32)))
  return np.array(jax.flatten_util.ravel_pytree(state)[0])


@functools.lru_cache
def _network(shape: Shape) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns the network as a function of a vector of parameters."""
  graph, state = nnx.split(nnx.eval_shape(lambda: shape.build(nnx.Rngs(0))))
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
  unravel = jax.flatten_util.ravel_pytree(zeros)[1]

  def call(params: jax.Array, windows: jax.Array) -> jax.Array:
    return nnx.merge(graph, unravel(params))(windows)

  return call
