"""Rounds carried out, on devices and by counting with NumPy."""

import random
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from topology.forests import rounds


def program(
  plan: rounds.Rounds, chunks: int
) -> Callable[[jax.Array], jax.Array]:
  """Returns a jitted function of what workers hold, [N, U, C, ...].

  Worker n is device n.  The loop over steps has one body, in which each permute
  is one operation; all that is sent in a step is read before it changes.
  """
  count = len(plan.workers)
  mesh = jax.make_mesh(
    (count,),
    ('worker',),
    axis_types=(AxisType.Auto,),
    devices=jax.devices()[:count],
  )

  def run(held_1xUxCxE):
    me = lax.axis_index('worker')
    send_slot, send_delay, receive_slot, receive_delay, operation = (
      jnp.asarray(table)[:, me]
      for table in (
        plan.send_slot,
        plan.send_delay,
        plan.receive_slot,
        plan.receive_delay,
        plan.operation,
      )
    )

    def step(s, held):
      came = []
      for p, pairs in enumerate(plan.pairs):
        chunk = jnp.clip(s - send_delay[p], 0, chunks - 1)
        sent = held[send_slot[p], chunk]
        came.append(lax.ppermute(sent, 'worker', pairs))
      for p, new in enumerate(came):
        number = s - receive_delay[p]
        at = receive_slot[p], jnp.clip(number, 0, chunks - 1)
        old = held[at]
        new = jnp.where(operation[p] == rounds.ADD, old + new, new)
        valid = (number >= 0) & (number < chunks)
        valid &= operation[p] != rounds.NONE
        held = held.at[at].set(jnp.where(valid, new, old))
      return held

    return lax.fori_loop(0, plan.steps(chunks), step, held_1xUxCxE[0])[None]

  spec = PartitionSpec('worker')
  return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))


def replayed(
  plan: rounds.Rounds,
  chunks: int,
  rng: random.Random | None = None,
  steps: int | None = None,
) -> np.ndarray:
  """Returns how often workers hold the contribution of each, Int [N, U, C, N].

  The permutes of a step read what there was before it; or, with `rng`, run one
  after the other in random order.
  """
  count = len(plan.workers)
  shape = count, len(plan.roots), chunks, count
  held = np.zeros(shape, int)
  for worker in range(count):
    held[worker, :, :, worker] = 1
  for step in range(plan.steps(chunks) if steps is None else steps):
    order = list(range(len(plan.pairs)))
    if rng:
      rng.shuffle(order)
    before = held if rng else held.copy()
    for p in order:
      came = {
        dst: before[
          src,
          plan.send_slot[p, src],
          min(max(step - plan.send_delay[p, src], 0), chunks - 1),
        ].copy()
        for src, dst in plan.pairs[p]
      }
      for dst, counts in came.items():
        chunk = step - plan.receive_delay[p, dst]
        at = dst, plan.receive_slot[p, dst], chunk
        if 0 <= chunk < chunks:
          adds = plan.operation[p, dst] == rounds.ADD
          held[at] = held[at] + counts if adds else counts
  return held
