"""The learner of a virtual run whose workers sum by conversations."""

from typing import Any

import jax

from cluster.virtual.store import LocalParameterStore
from learning import scaling
from learning.gradient import add_trees
from learning.layout import Layout
from learning.learning import Learner
from learning.local_codec import LocalCodec
from learning.residuals import l1_norms, named_leaves
from wire.codec import Payload, State, Summed
from wire.talks import Talks


class MultiRoundStore(LocalParameterStore):
  """A LocalParameterStore that sums pushes in several rounds.

  Gradients are vectors as they lie in a pool, as between real hosts.
  """

  def __init__(
    self, learner: Learner, talks: Talks, layout: Layout, workers: int
  ):
    """Nobody remembers anything.

    Args:
      learner: Its `scaling` is that of all workers.
      talks: Of vectors as large as the gradient in the pool.
      layout: Of these vectors.
      workers: How many there are.
    """
    super().__init__(learner, LocalCodec(), scalings=[], summed=True)
    self._talks, self._layout = talks, layout
    self._looks |= talks.overflows
    self._states: dict[int, State] = dict(
      enumerate(map(talks.init, range(workers)))
    )
    self._stage = 0
    self._pushes: dict[int, dict[int, tuple[Payload, int, bool]]] = {}
    self._whole, self._add = jax.jit(layout.flatten), jax.jit(add_trees)
    self._leaves = jax.jit(layout.unflatten)

  def warm_up(self, payloads: list[Payload]) -> None:
    """Compiles what pushes like these need, and updates."""
    payload = payloads[-1]
    vector = self._whole(payload.gradient)
    self._is_finite(payload.gradient)
    stats = self._add(payload.stats, payload.stats)
    for summed in self._talks.warm_up(vector):
      self.learner.warm_up(self._payload(summed, stats))

  def arrived(self, worker: int, message: Payload, stage: int) -> bool:
    """A worker has computed, as all have; returns whether it is finite."""
    self._stage = stage
    return super().arrived(worker, message, 0)

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool = True
  ) -> None:
    """Sums what a worker has computed into an update."""
    payload = self._arrived.pop(worker)
    pushes = self._pushes.setdefault(update, {})
    pushes[worker] = payload, examples, finite

  def commit(self, update: int) -> bool:
    """Lets the workers converse, and applies what comes of it."""
    pushes = self._pushes.pop(update)
    finite = all(finite for *_, finite in pushes.values())
    if finite:
      summed, after = self._talks.together(
        self._states,
        {k: self._whole(push.gradient) for k, (push, *_) in pushes.items()},
        stage=self._stage,
        scale=scaling.factor(self.learner.scaling),
      )
      stats, *others = (push.stats for push, *_ in pushes.values())
      for other in others:
        stats = self._add(stats, other)
      payload = self._payload(summed, stats)
      finite = not self._looks or bool(self._is_finite(payload.gradient))
    if not finite:
      what = f'The sum of all gradients of version {self.version}'
      scaling.check(self.scalings, 0, what)
      self.learner.skip()
      return False
    self._remember(after)
    examples = sum(count for _, count, _ in pushes.values())
    self.learner.add(update, payload, examples, pushes=len(pushes))
    self.learner.commit(update)
    return True

  def forget(self, worker: int, states: Any) -> dict[str, float]:
    """Forgets what a worker keeps; returns sums of it, by parameter."""
    state, fresh = self._states[worker], self._talks.init(worker)
    self._states[worker] = fresh._replace(common=state.common)
    vectors = jax.device_get(state.kept)
    residuals = jax.tree.map(self._layout.unflatten, vectors)
    return l1_norms(dict(named_leaves(residuals)))

  def state(self) -> dict[str, Any]:
    """Returns what is to be kept, with what workers remember."""
    return super().state() | {'remembered': self._states}

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the store's from now on."""
    super().restore(state)
    self._states = state['remembered']

  def _remember(self, after: dict[int, State]) -> None:
    common = next(iter(after.values())).common
    self._states = {
      worker: after.get(worker, state._replace(common=common))
      for worker, state in self._states.items()
    }

  def _payload(self, summed: Summed, stats: Any) -> Payload:
    arrived = summed.arrived
    return Payload(
      self._leaves(summed.vector),
      stats,
      () if isinstance(arrived, tuple) else self._leaves(arrived),
    )
