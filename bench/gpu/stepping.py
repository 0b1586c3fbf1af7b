"""Process that performs steps of a run or a bare loop on request.

  python -m bench.gpu.stepping --workdir=DIR [--config.SECTION.FIELD=VALUE ...]

It reads lines from standard input and answers each with a line of JSON:

  product N   seconds that N steps of the run take
  bare N      seconds that N steps of a bare jitted loop take

Processes with different flags of XLA, which a process reads only once, can
alternate in this way.  The run is a virtual one of one worker that pauses
inside its gradient, so that the measured time includes all costs of a step.
The bare loop is written in plain JAX: one jitted function of loss, gradient and
update, with donated arguments.
"""

import ast
import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from ml_collections import ConfigDict

import train
from configs import default, paths
from data.dataset import Split
from models.task import Task

_FIELD = '--config.'
_FIELDS = {
  'cluster.workers': 1,
  'cluster.speed.slowdown': (1.0,),
  'epochs': 1e6,
  'eval_every': 1e6,
  'checkpoint.every_s': float('inf'),
}


class _EndOfInput(Exception):
  """End of standard input, which ends the run."""


def main(argv: list[str]) -> None:
  """Performs the requested steps until standard input ends."""
  # Standard output carries only answers; output of the run goes elsewhere.
  answers, sys.stdout = sys.stdout, sys.stderr
  config = read_config(argv[1:])
  run = train.build(config, workdir=flags.FLAGS.workdir)
  run.runtime.pushes = _RequestedPushes(run.runtime.pushes, config, answers)
  with contextlib.suppress(_EndOfInput):
    run()


class _RequestedPushes:
  """Pushes, of which only as many are computed as are requested.

  All other attributes are those of the wrapped gradient.
  """

  def __init__(self, gradient: Any, config: ConfigDict, answers: TextIO):
    self._gradient, self._config, self._answers = gradient, config, answers
    self._remaining, self._start = 0, 0.0
    self._bare: Iterator[None] | None = None

  def __getattr__(self, name: str) -> Any:
    return getattr(self._gradient, name)

  def push(self, params: Any, *arguments: Any) -> Any:
    """Computes a push; first waits for a request when none remain."""
    if self._remaining == 0:
      jax.block_until_ready(params)  # Result of the last update.
      if self._start:
        self._answer(time.perf_counter() - self._start)
      self._remaining = self._await_steps(params)
      self._start = time.perf_counter()
    self._remaining -= 1
    return self._gradient.push(params, *arguments)

  def _await_steps(self, params: Any) -> int:
    """Executes requests up to one for steps; returns the number of steps."""
    for line in sys.stdin:
      request, value = line.split(maxsplit=1)
      if request == 'product':
        return int(value)
      self._answer(self._take_bare(params, int(value)))
    raise _EndOfInput

  def _answer(self, seconds: float) -> None:
    print(json.dumps(seconds), file=self._answers, flush=True)

  def _take_bare(self, params: Any, steps: int) -> float:
    if self._bare is None:
      self._bare = bare_loop(
        self._gradient.task, self._gradient.train, params, self._config
      )
      for _ in range(2):  # Compiles.
        jax.block_until_ready(next(self._bare))
    start = time.perf_counter()
    for _ in range(steps):
      result = next(self._bare)
    jax.block_until_ready(result)
    return time.perf_counter() - start


def read_config(words: Sequence[str]) -> ConfigDict:
  """Returns the config of one worker with fields changed by flags.

  Args:
    words: Flags, --config.SECTION.FIELD=VALUE.

  Raises:
    ValueError: If a flag has another form.
  """
  fields = dict(_FIELDS)
  for word in words:
    field, has_value, text = word.partition('=')
    if not (field.startswith(_FIELD) and has_value):
      raise ValueError(f'flags: expected {_FIELD}FIELD=VALUE, got {word!r}.')
    fields[field.removeprefix(_FIELD)] = _value(text)
  config = default.get_config()
  config.update_from_flattened_dict(fields)
  return config


def _value(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return float(text) if text == 'inf' else text


def bare_loop(
  task: Task, data: Split, params: Any, config: ConfigDict
) -> Iterator[Any]:
  """Yields parameters after each step of SGD in plain JAX.

  With wire `topk`, an update applies only the largest numbers of gradient plus
  residual, as with error feedback.

  Args:
    params: Initial parameters, which are copied.
    config: Config of the run to compare with.
  """
  tx = optax.sgd(config.optimizer.learning_rate)
  batch = config.batching.worker_batch
  root = jax.random.key(config.seed)
  params = jax.tree.map(jnp.copy, params)
  vector, unravel = jax.flatten_util.ravel_pytree(params)
  split = _make_split(config, vector.size)
  residual = jnp.zeros_like(vector) if split else None
  del vector

  @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
  def step(
    params: Any, state: Any, residual: Any, inputs: Any, targets: Any, n: Any
  ) -> tuple[Any, Any, Any]:
    key = jax.random.fold_in(root, n)
    gradient = jax.grad(
      lambda params: jnp.mean(task.loss(params, inputs, targets, key)[0])
    )(params)
    if split:
      vector, residual = split(
        residual + jax.flatten_util.ravel_pytree(gradient)[0]
      )
      gradient = unravel(vector)
    updates, state = tx.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, residual

  state, order = tx.init(params), np.random.default_rng(config.seed)
  number = 0
  while True:
    rows = order.permutation(len(data.targets))
    for first in range(0, len(rows) - batch + 1, batch):
      chosen = rows[first : first + batch]
      params, state, residual = step(
        *(params, state, residual),
        *(data.inputs[chosen], data.targets[chosen], np.uint32(number)),
      )
      number += 1
      yield params


def _make_split(
  config: ConfigDict, size: int
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]] | None:
  """Returns the function that splits off the largest numbers of a vector."""
  # Other wires send everything: None.
  if config.wire.name != 'topk':
    return None
  count = round((1 - config.wire.topk.sparsity) * size)

  def split(vector: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, places = jax.lax.top_k(jnp.abs(vector), count)
    residual = vector.at[places].set(0, unique_indices=True)
    return vector - residual, residual

  return split


def _parse(argv: list[str]) -> list[str]:
  paths.define_path('workdir', 'New folder of the run.', required=True)
  return flags.FLAGS(argv, known_only=True)  # Fields of the config remain.


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
