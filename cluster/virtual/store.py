"""Parameter store of virtual runs, in the process of all workers."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from learning import scaling, warm_up
from learning.learning import Learner
from learning.local_codec import LocalCodec
from learning.scaling import Scaling
from learning.schedule import Schedule
from wire.codec import Message, Payload


class LocalParameterStore:
  """A `ParameterStore` with its learner: see `learning.learning`.

  Attributes:
    learner: Learner with the parameters.
    codec: Encoder and decoder of pushes and pulls.
  """

  def __init__(
    self,
    learner: Learner,
    codec: LocalCodec,
    *,
    schedule: Schedule | None,
    scalings: list[Scaling],
    summed: bool,
    masks: Sequence[Any] = (),
  ):
    """Stores learner and codec.

    Args:
      learner: Learner, whose `scaling` is that of all workers in an allreduce.
      codec: Encoder and decoder of pushes and pulls.
      schedule: Schedule of the learning rate; None if nothing is learned.
      scalings: Loss scale of each worker that pushes to servers; [] without.
      summed: Whether workers allreduce their gradients: sums are then rounded,
        too, and workers pull no parameters.
      masks: Parts of updates to apply, in turn, as of `Payload.arrived`; () to
        apply all.
    """
    self.learner = learner
    self.codec = codec
    self._schedule = schedule
    self._scalings, self._summed = scalings, summed
    self._masks = masks
    # Without float16, losses show soon enough that numbers are not finite.
    scaled = bool(scalings or learner.scaling)
    self._checks_finite = scaled or codec.overflows
    self._rounds_sums = summed and (
      self._checks_finite or codec.dtype != jnp.float32
    )
    self._is_finite = jax.jit(_is_finite)
    self._arrived: dict[int, Payload] = {}  # By worker.
    self._held: dict[int, tuple[Any, Any]] = {}
    self._newest: tuple[Any, Any] = None, None  # Decoded.

  @property
  def scalings(self) -> list[Scaling]:
    """Loss scale of each worker, or one for all; [] without scaling."""
    own = self.learner.scaling
    return [own] if own else self._scalings

  def warm_up(self, payloads: list[Payload]) -> None:
    """Compiles the programs of pushes like these, and of updates."""
    for stage in range(self.codec.stages):
      state = self.codec.init(0)
      for payload in (*payloads, payloads[-1]):  # With a codec state, too.
        message, state = self.codec.encode(state, payload, stage, 1.0)
        arrived = jax.block_until_ready(self.codec.decode(message, stage))
        if self._checks_finite:
          self._is_finite(arrived.gradient)
      warm_up.apply_updates(self.learner, arrived, adds=True)
      for mask in self._masks[:1]:
        masked = arrived._replace(arrived=mask)
        warm_up.apply_updates(self.learner, masked, adds=False)

  def pull(self) -> Any:
    """Returns the parameters as workers receive them.

    They are decoded once for each version.
    """
    if self._summed:  # Workers have them, and pull nothing.
      return self.learner.params
    if self._newest[0] is not self.learner.params:
      params = self.learner.params
      self._newest = params, self.codec.pull(params)
    return self._newest[1]

  def take_push(self, worker: int, message: Message, stage: int) -> bool:
    """Takes a worker's push, and returns whether it is finite.

    Args:
      worker: Index of the worker.
      message: Message of the push.
      stage: Index of the wire's stage.
    """
    self._arrived[worker] = payload = self.codec.decode(message, stage)
    return not self._checks_finite or bool(self._is_finite(payload.gradient))

  def add(
    self,
    update: int,
    worker: int,
    examples: int,
    *,
    weight: float | None = None,
    staleness_weight: float = 1.0,
    finite: bool = True,
  ) -> None:
    """Adds a worker's push, which has arrived, to an update."""
    payload = self._arrived.pop(worker)
    if not self._scalings:
      scale = 1 / staleness_weight
      self.learner.add(update, payload, examples, weight=weight, scale=scale)
      return
    own = self._scalings[worker]
    self._scalings[worker] = own.after(finite=finite)
    if finite:
      scale = own.value / staleness_weight
      self.learner.add(update, payload, examples, weight=weight, scale=scale)

  def discard(self, worker: int) -> None:
    """Drops a worker's push, which has arrived."""
    del self._arrived[worker]

  def commit(self, update: int) -> bool:
    """Applies or skips an update, and increments the version.

    Raises:
      FloatingPointError: If a sum is not finite for another reason than its
        loss scale.
    """
    if self._rounds_sums:
      gradient = self.learner.replace(update, self._round).gradient
      if self._checks_finite and not self._is_finite(gradient):
        what = f'The sum of all gradients of version {self.version}'
        scaling.check(self.scalings, 0, what)
        self.learner.skip(update)
        return False
    if self._masks:
      mask = self._masks[self.version % len(self._masks)]
      self.learner.replace(update, lambda sums: sums._replace(arrived=mask))
    self.learner.commit(update)
    return True

  def forget(self, worker: int, states: Any) -> dict[str, float]:
    """Drops the residuals of a worker that dies; returns their L1 norms.

    Args:
      worker: Index of the worker.
      states: Its codec states.

    Returns:
      Norms by parameter.
    """
    del worker
    return self.codec.residual_norms(states)

  def hold(self) -> int:
    """Holds the current version until `free`; returns a handle."""
    handle = max(self._held, default=0) + 1
    self._held[handle] = self.learner.params, self.learner.stats
    return handle

  def free(self, handle: int) -> None:
    """Frees a held version."""
    self._held.pop(handle)

  def read(self, handle: int) -> Callable[[], tuple[Any, Any]]:
    """Returns a function that returns a held version."""
    return functools.partial(self._held.__getitem__, handle)

  def state(self) -> dict[str, Any]:
    """Returns the states of the learner and of loss scales."""
    return {'learner': self.learner.state(), 'scalings': self._scalings}

  def restore(self, state: dict[str, Any]) -> None:
    """Restores the result of `state`; the store owns it from now on."""
    self.learner.restore(state['learner'])
    self._scalings = state['scalings']

  @property
  def version(self) -> int:
    """Number of updates applied or skipped."""
    return self.learner.version

  @property
  def examples(self) -> int:
    """Number of examples in applied updates; skipped ones do not count."""
    return self.learner.examples

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None without a model."""
    if self._schedule is None:
      return None
    return self._schedule(examples=self.examples, updates=self.version)

  def _round(self, payload: Payload) -> Payload:
    """Returns a sum as all workers receive it."""
    message, _ = self.codec.encode(self.codec.init(0), payload, 0, 1.0)
    return self.codec.decode(message, 0)


def _is_finite(gradient: Any) -> jax.Array:
  leaves = jax.tree.leaves(gradient)
  peaks = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
  return jnp.isfinite(jnp.array(peaks)).all()
