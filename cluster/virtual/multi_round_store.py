"""The parameter store of virtual runs with a multi-round allreduce."""

from typing import Any

import jax

from cluster.virtual.store import LocalParameterStore
from learning import scaling, warm_up
from learning.gradient import add_trees
from learning.layout import Layout
from learning.learning import Learner
from learning.local_codec import LocalCodec
from learning.residuals import l1_norms, named_leaves
from learning.schedule import Schedule
from wire.codec import PartialVector, Payload, State
from wire.multi_round import MultiRoundAllreduce


class MultiRoundStore(LocalParameterStore):
  """A LocalParameterStore that runs the allreduce of all workers' pushes.

  It holds the codec states of all workers.  Gradients are flat vectors, as
  between real hosts.
  """

  def __init__(
    self,
    learner: Learner,
    multi_round: MultiRoundAllreduce,
    layout: Layout,
    workers: int,
    *,
    schedule: Schedule | None,
  ):
    """Creates the store, with the initial state of each worker's codec.

    Args:
      learner: Learner whose `scaling` is that of all workers.
      multi_round: Allreduce of vectors as large as the layout's gradient.
      layout: Layout of gradients.
      workers: Number of workers.
      schedule: Schedule of the learning rate; None if nothing is learned.
    """
    super().__init__(
      learner, LocalCodec(), schedule=schedule, scalings=[], summed=True
    )
    self._multi_round, self._layout = multi_round, layout
    self._checks_finite |= multi_round.overflows
    self._states: dict[int, State] = dict(
      enumerate(map(multi_round.init, range(workers)))
    )
    self._stage = 0
    # By update and worker: payload, examples, weight, and whether it is finite.
    self._pushes: dict[int, dict[int, tuple[Payload, int, float, bool]]] = {}
    self._to_vector, self._add = jax.jit(layout.flatten), jax.jit(add_trees)
    self._to_leaves = jax.jit(layout.unflatten)

  def warm_up(self, payloads: list[Payload]) -> None:
    """Compiles the allreduce of pushes like these, and updates."""
    payload = payloads[-1]
    vector = self._to_vector(payload.gradient)
    self._is_finite(payload.gradient)
    stats = self._add(payload.stats, payload.stats)
    for reduced in self._multi_round.warm_up(vector):
      payload = self._payload(reduced, stats)
      warm_up.apply_updates(self.learner, payload, adds=False)

  def take_push(self, worker: int, message: Payload, stage: int) -> bool:
    """Takes the push of a worker; returns whether it is finite."""
    self._stage = stage
    return super().take_push(worker, message, 0)

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
    """Adds the push of a worker to an update."""
    del staleness_weight  # 1: no push of an allreduce is stale.
    weight = examples if weight is None else weight
    payload = self._arrived.pop(worker)
    pushes = self._pushes.setdefault(update, {})
    pushes[worker] = payload, examples, weight, finite

  def commit(self, update: int) -> bool:
    """Runs the allreduce of an update's pushes, and applies its result."""
    pushes = self._pushes.pop(update)
    finite = all(finite for *_, finite in pushes.values())
    if finite:
      reduced, next_states = self._multi_round.reduce(
        self._states,
        {k: self._to_vector(push.gradient) for k, (push, *_) in pushes.items()},
        stage=self._stage,
        scale=scaling.factor(self.learner.scaling),
      )
      stats, *others = (push.stats for push, *_ in pushes.values())
      for other in others:
        stats = self._add(stats, other)
      payload = self._payload(reduced, stats)
      finite = not self._checks_finite or bool(
        self._is_finite(payload.gradient)
      )
    if not finite:
      what = f'The sum of all gradients of version {self.version}'
      scaling.check(self.scalings, 0, what)
      self.learner.skip()
      return False
    self._replace_states(next_states)
    examples = sum(count for _, count, *_ in pushes.values())
    weight = sum(weight for *_, weight, _ in pushes.values())
    self.learner.add(
      update, payload, examples, weight=weight, pushes=len(pushes)
    )
    self.learner.commit(update)
    return True

  def forget(self, worker: int, states: Any) -> dict[str, float]:
    """Resets a worker's codec; returns L1 norms of the residual it had."""
    state, fresh = self._states[worker], self._multi_round.init(worker)
    self._states[worker] = fresh._replace(replicated=state.replicated)
    vectors = jax.device_get(state.residual)
    residual = jax.tree.map(self._layout.unflatten, vectors)
    return l1_norms(dict(named_leaves(residual)))

  def state(self) -> dict[str, Any]:
    """Returns what a checkpoint holds, with the states of codecs."""
    return super().state() | {'codecs': self._states}

  def restore(self, state: dict[str, Any]) -> None:
    """Restores the result of `state`, which must not be used afterwards."""
    super().restore(state)
    self._states = state['codecs']

  def _replace_states(self, next_states: dict[int, State]) -> None:
    """Sets workers' next states; other workers get the replicated part."""
    replicated = next(iter(next_states.values())).replicated
    self._states = {
      worker: next_states.get(worker, state._replace(replicated=replicated))
      for worker, state in self._states.items()
    }

  def _payload(self, reduced: PartialVector, stats: Any) -> Payload:
    arrived = reduced.arrived
    return Payload(
      self._to_leaves(reduced.vector),
      stats,
      () if isinstance(arrived, tuple) else self._to_leaves(arrived),
    )
