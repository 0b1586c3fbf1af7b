"""Measures how long a server adds a push and applies an update."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from cluster.network.messages import ServerWork
from learning.learning import Learner
from system import clock
from wire.codec import Payload

_ROUNDS, _LIMIT_S = 3, 0.5  # No further round after this many seconds.


def measure(
  learner: Learner,
  stages: Sequence[int],
  receive: Callable[[int], np.ndarray],
  decode: Callable[[np.ndarray, int], Payload],
) -> ServerWork | None:
  """Measures a server before its run, on copies of its learner.

  The programs have been compiled.  The fastest of up to three rounds counts.

  Args:
    learner: Learner of the server's share.
    stages: Stages of the wire.
    receive: Returns the bytes of a new push of a stage, uint8 [n].
    decode: Decodes a push of a stage in place.

  Returns:
    The work; None without a model, as there is none then.
  """
  if not learner.has_model:
    return None
  rounds: list[tuple[float, float]] = []
  start = clock.perf_counter()
  while not rounds or (
    len(rounds) < _ROUNDS and clock.perf_counter() - start < _LIMIT_S
  ):
    rounds.append(_measure_once(learner.fork(), stages, receive, decode))
  sum_s, update_s = (min(seconds) for seconds in zip(*rounds, strict=True))
  return ServerWork(
    share_bytes=_num_bytes((learner.params, learner.stats)),
    slot_bytes=_num_bytes(learner.state()['_state']),
    sum_s=sum_s,
    update_s=update_s,
  )


def slowest(servers: Sequence[ServerWork | None]) -> ServerWork | None:
  """Returns the work of the slowest server; None if one was not measured."""
  known = [each for each in servers if each]
  if not known or len(known) < len(servers):
    return None
  return max(known, key=lambda each: each.sum_s + each.update_s)


def _measure_once(
  learner: Learner,
  stages: Sequence[int],
  receive: Callable[[int], np.ndarray],
  decode: Callable[[np.ndarray, int], Payload],
) -> tuple[float, float]:
  """Returns the seconds of a sum, in all stages, and of an update."""
  sum_s, update = 0.0, learner.version
  for update, stage in enumerate(stages, learner.version):
    learner.add(update, decode(receive(stage), stage), 1)
    push = receive(stage)
    jax.block_until_ready(learner.state())
    start = clock.perf_counter()
    learner.add(update, decode(push, stage), 1)
    jax.block_until_ready(learner.state())
    sum_s += clock.perf_counter() - start
  start = clock.perf_counter()
  learner.commit(update)
  jax.block_until_ready(learner.state())
  return sum_s, clock.perf_counter() - start


def _num_bytes(tree: object) -> int:
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
