"""The learner in the process of the virtual runtime, and what travels of it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from learning import scaling
from learning.learning import Learner
from learning.local_codec import LocalCodec
from learning.scaling import Scaling
from wire.codec import Message, Payload


class LocalParameterStore:
  """A ParameterStore: see `learning.learning`.

  Attributes:
    learner: Holds the parameters.
    codec: What becomes of pushes and pulls on their way.
  """

  def __init__(
    self,
    learner: Learner,
    codec: LocalCodec,
    *,
    scalings: list[Scaling],
    summed: bool,
  ):
    """Holds the learner.

    Args:
      learner: Its `scaling` is that of all workers if what they push is summed.
      codec: What becomes of pushes and pulls on their way.
      scalings: Of each worker that pushes to servers; [] without.
      summed: Whether workers sum what they push: then sums are rounded, too.
    """
    self.learner = learner
    self.codec = codec
    self._scalings, self._summed = scalings, summed
    # Losses tell soon enough of what is not finite but for float16.
    scaled = bool(scalings or learner.scaling)
    self._looks = scaled or codec.overflows
    self._rounds = summed and (self._looks or codec.dtype != jnp.float32)
    self._is_finite = jax.jit(_is_finite)
    self._arrived: dict[int, Payload] = {}  # Pushes, by worker.
    self._held: dict[int, tuple[Any, Any]] = {}
    self._newest: tuple[Any, Any] = None, None  # Parameters; as workers get it.

  @property
  def scalings(self) -> list[Scaling]:
    """Loss scales: of each worker, or of all; [] without."""
    own = self.learner.scaling
    return [own] if own else self._scalings

  def warm_up(self, payloads: list[Payload]) -> None:
    """Compiles what pushes like these need, and updates."""
    for stage in range(self.codec.stages):
      state = self.codec.init(0)
      for payload in (*payloads, payloads[-1]):  # Of what is remembered, too.
        message, state = self.codec.encode(state, payload, stage, 1.0)
        arrived = jax.block_until_ready(self.codec.decode(message, stage))
        if self._looks:
          self._is_finite(arrived.gradient)
      self.learner.warm_up(arrived)

  def pulled(self) -> Any:
    """Returns the parameters as workers get them; once for each version."""
    if self._summed:  # Nobody pulls: workers have them.
      return self.learner.params
    if self._newest[0] is not self.learner.params:
      params = self.learner.params
      self._newest = params, self.codec.pull(params)
    return self._newest[1]

  def arrived(self, worker: int, message: Message, stage: int) -> bool:
    """A worker's push has arrived whole; returns whether it is finite.

    Args:
      worker: Whose it is.
      message: What has come.
      stage: Of the wire.
    """
    self._arrived[worker] = payload = self.codec.decode(message, stage)
    return not self._looks or bool(self._is_finite(payload.gradient))

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool = True
  ) -> None:
    """Sums the push of a worker, which has arrived, into an update."""
    payload = self._arrived.pop(worker)
    if not self._scalings:
      self.learner.add(update, payload, examples)
      return
    own = self._scalings[worker]
    self._scalings[worker] = own.after(finite=finite)
    if finite:
      self.learner.add(update, payload, examples, scale=own.value)

  def commit(self, update: int) -> bool:
    """Applies an update, or skips it; the version becomes one higher.

    Raises:
      FloatingPointError: If a sum is not finite, and that is not for its scale.
    """
    if self._rounds:
      gradient = self.learner.replace(update, self._rounded).gradient
      if self._looks and not self._is_finite(gradient):
        what = f'The sum of all gradients of version {self.version}'
        scaling.check(self.scalings, 0, what)
        self.learner.skip(update)
        return False
    self.learner.commit(update)
    return True

  def forget(self, worker: int, states: Any) -> dict[str, float]:
    """Forgets what a worker keeps; returns sums of it, by parameter.

    Args:
      worker: Who dies.
      states: What its codec remembers.
    """
    del worker
    return self.codec.residual_norms(states)

  def hold(self) -> int:
    """Keeps this version's parameters and statistics; returns a number."""
    held = max(self._held, default=0) + 1
    self._held[held] = self.learner.params, self.learner.stats
    return held

  def drop(self, held: int) -> None:
    """Forgets a version that was held."""
    self._held.pop(held)

  def read(self, held: int) -> Callable[[], tuple[Any, Any]]:
    """Returns what gives a version that is held."""
    return functools.partial(self._held.__getitem__, held)

  def state(self) -> dict[str, Any]:
    """Returns what is to be kept of the learner and of scales."""
    return {'learner': self.learner.state(), 'scalings': self._scalings}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the store's from now on."""
    self.learner.restore(state['learner'])
    self._scalings = state['scalings']

  @property
  def version(self) -> int:
    """Updates applied, or skipped."""
    return self.learner.version

  @property
  def examples(self) -> int:
    """Examples in them."""
    return self.learner.examples

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None if nothing is learned."""
    return self.learner.learning_rate

  def _rounded(self, payload: Payload) -> Payload:
    """Returns what all workers get of a sum."""
    message, _ = self.codec.encode(self.codec.init(0), payload, 0, 1.0)
    return self.codec.decode(message, 0)


def _is_finite(gradient: Any) -> jax.Array:
  leaves = jax.tree.leaves(gradient)
  peaks = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
  return jnp.isfinite(jnp.array(peaks)).all()
