"""Networks that learn to predict speeds during the run.

A network maps a worker's last observations to the distance of its next speed
from its exponential average, all standardised.  Every observation adds a few
steps of Adam on samples of the stored observations, so that the cost is
bounded.  The loss is Huber's ('Robust estimation of a location parameter',
1964), as single iterations may be slow for unknown reasons.  The training is
series-parallel: inputs are observed speeds, never predicted ones.

If speeds change their pattern a network may be worse than an average.
predict/gate.py therefore weighs its prediction against averages.

All workers share the parameters; the standardisation holds their differences.
A network for each worker was 1 % better or worse, depending on the trace; it
costs more, and knows nothing of a worker that has just joined.

All state between calls is in NumPy arrays, so that a copy continues bit for
bit.  `make` compiles the program.
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

from configs import checks
from predict import gate, history, predictor

_MOST_STORED = 200_000  # Observations of all workers: about 10 MB.
_ROBUST = 0.25  # Deviations up to which the loss is a square.
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Parameters of Adam.


class Architecture(Protocol):
  """Sizes of a network, as a frozen dataclass that `jax.jit` can hash."""

  @property
  def window(self) -> int:
    """Number of observations that the network reads."""

  def build(self, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a network that maps float32 [B, window, F + 2] to [B]."""

  def __hash__(self) -> int:
    """Returns a hash, equal for equal sizes."""


@dataclasses.dataclass(frozen=True)
class Fitting:
  """Settings of a network's training.

  Attributes:
    steps: Steps of Adam per observation.
    minibatch: Samples of a step.
    learning_rate: Learning rate of Adam.
    decay: Decoupled weight decay, multiplied by the learning rate.
    averaging: Weight of the newest parameters in the average that predicts.
  """

  is_state = True  # Plain data: checkpoints hold it.

  steps: int
  minibatch: int
  learning_rate: float
  decay: float
  averaging: float


@dataclasses.dataclass
class Online:
  """State of a network, its training data, and its errors.

  An observation trains the network and predicts the next speeds: O(n).
  Predictions are clipped to the range of the worker's past speeds.  A worker's
  reset deletes its history; the parameters, which all workers share, stay.

  Attributes:
    architecture: Sizes of the network.
    fitting: Settings of the training.
    seed: Seed of the parameters and of the samples.
    needed: Observations of a worker after which the network predicts.
    history: Stored observations.
    gate: Errors of the network and of averages.
    weights: Float32 [4, p]: parameters, averages of their gradients and of the
      squared gradients, and average of the parameters.
    fits: Number of observations after which the network was trained.
    predicted: Float64 [n], speeds that `predict` returns.
  """

  is_state = True  # Plain data: checkpoints hold it.

  architecture: Architecture
  fitting: Fitting
  seed: int
  needed: int
  history: history.History
  gate: gate.Gate
  weights: np.ndarray
  fits: int
  predicted: np.ndarray

  @property
  def num_fallback(self) -> int:
    count = self.history.count
    return int(((count > 0) & (count < self.needed)).sum())

  def observe(self, speeds: np.ndarray, factors: np.ndarray) -> None:
    if not len(self.history.add(speeds, factors)):
      return
    self.gate.observe(np.asarray(speeds, np.float64))
    # A counter-based generator needs no state in checkpoints.
    key = np.array([self.seed, self.fits], np.uint64)
    samples = self.history.samples(
      np.random.Generator(np.random.Philox(key=key)),
      self.fitting.steps * self.fitting.minibatch,
      self.architecture.window,
    )
    expected = self.history.average.copy()
    if samples is not None:
      gain = self._advance(*samples)
      self.fits += 1
      ready = self.history.count >= self.needed
      gain = np.where(ready, gain, 0) * self.history.deviation()
      expected = self.history.clip(expected + gain)
    self.predicted = self.history.clip(self.gate.mix(expected))

  def predict(self) -> np.ndarray:
    return self.predicted.copy()

  def reset(self, worker: int) -> None:
    self.history.reset(worker)
    self.gate.reset(worker)
    self.predicted[worker] = np.nan

  def _advance(self, windows: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Trains the network on samples and returns its outputs, float64 [n]."""
    batches = (self.fitting.steps, self.fitting.minibatch)
    with _on_cpu():
      weights, outputs = _fit_and_predict(
        self.architecture,
        self.fitting,
        self.weights,
        np.int32(self.fits),
        windows.reshape(*batches, *windows.shape[1:]),
        gains.reshape(batches),
        self.history.latest(self.architecture.window),
      )
    self.weights = np.array(weights)
    return np.asarray(outputs, np.float64)


def make(
  architecture: Architecture,
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
  """Returns a predictor with a compiled network that is not trained yet.

  Args:
    num_factors: Number of driving factors, F; may be 0.
    seed: Seed of the parameters and of the samples, 0 to 2^64 - 1.
    smoothing: Weight of the newest speed in the average to which the network
      adds its output.
    quick: Weight of the newest speed in a second average.
    discount: Smoothing factor of the squared errors by which the gate mixes its
      four experts: the network, the two averages and the last speed.
    kept: Number of stored observations per worker, the newest; fewer if all
      workers together would have over 200,000.
    needed: Observations of a worker after which the network predicts.
    steps: Steps of Adam per observation.
    minibatch: Samples of a step.
    learning_rate: Learning rate of Adam, above 0.
    decay: Decoupled weight decay, at least 0.
    averaging: Weight of the newest parameters in the average that predicts,
      above 0, at most 1, which means no averaging.

  Raises:
    ValueError: If an argument is out of range.
  """
  predictor.check_sizes(num_workers, num_factors, seed)
  least = architecture.window + 1
  checks.require(kept >= least, 'kept', f'at least {least}', kept)
  checks.require(needed >= least, 'needed', f'at least {least}', needed)
  with _on_cpu():
    params = _init_parameters(architecture, seed)
  predictor_ = Online(
    architecture=architecture,
    fitting=Fitting(steps, minibatch, learning_rate, decay, averaging),
    seed=seed,
    needed=needed,
    history=history.make(
      num_workers=num_workers,
      num_factors=num_factors,
      capacity=max(least, min(kept, _MOST_STORED // num_workers)),
      smoothing=smoothing,
    ),
    gate=gate.make(
      num_workers=num_workers, quick=quick, slow=smoothing, discount=discount
    ),
    weights=np.stack([params, 0 * params, 0 * params, params]),
    fits=0,
    predicted=np.full(num_workers, np.nan),
  )
  _compile(predictor_)
  return predictor_


def _on_cpu() -> contextlib.AbstractContextManager[None]:
  """Returns a context that computes on a CPU: the networks are small."""
  device = jax.local_devices(backend='cpu')[0]
  context: contextlib.AbstractContextManager[None] = jax.default_device(device)
  return context


def _compile(online: Online) -> None:
  """Runs the program once, so that no later call compiles."""
  size = online.fitting.steps * online.fitting.minibatch
  columns = online.history.rows.shape[-1]
  windows = np.zeros((size, online.architecture.window, columns), np.float32)
  weights = online.weights
  online._advance(windows, np.zeros(size, np.float32))
  online.weights = weights


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit_and_predict(
  architecture: Architecture,
  fitting: Fitting,
  weights: jax.Array,  # Float32 [4, p], as in `Online`.
  fits: jax.Array,  # Int32, number of earlier calls.
  windows: jax.Array,  # Inputs of samples: [steps, minibatch, window, F + 2].
  gains: jax.Array,  # Targets of samples: [steps, minibatch], in deviations.
  latest: jax.Array,  # Inputs of the prediction: [n, window, F + 2].
) -> tuple[jax.Array, jax.Array]:
  """Trains on one observation; returns weights and all predicted speeds."""
  network = _network(architecture)

  def loss(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    losses: jax.Array = optax.huber_loss(network(params, x), y, delta=_ROBUST)
    return losses.mean()

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


def _init_parameters(architecture: Architecture, seed: int) -> np.ndarray:
  """Returns initial parameters, float32 [p]."""
  seed32 = int(np.random.SeedSequence(seed).generate_state(1)[0])
  state = nnx.state(architecture.build(nnx.Rngs(seed32)))
  return np.array(jax.flatten_util.ravel_pytree(state)[0])


@functools.lru_cache
def _network(
  architecture: Architecture,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns the network as a function of a vector of parameters."""
  abstract = nnx.eval_shape(lambda: architecture.build(nnx.Rngs(0)))
  graph, state = nnx.split(abstract)
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
  unravel = jax.flatten_util.ravel_pytree(zeros)[1]

  def call(params: jax.Array, windows: jax.Array) -> jax.Array:
    outputs: jax.Array = nnx.merge(graph, unravel(params))(windows)
    return outputs

  return call
