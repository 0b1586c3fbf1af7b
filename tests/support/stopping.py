"""Interrupted and uninterrupted runs, for tests of resumed runs."""

import functools
import json
import pathlib
from unittest import mock

import jax
import numpy as np

from tests.support import small


class Killed(BaseException):
  """Exception that no code catches, as SIGKILL cannot be caught."""


def eventful(scheme, **changed):
  """Returns a config with all kinds of events in flight at any time."""
  fields = {
    'sync__name': scheme,
    'epochs': 3.0,
    'eval_every': 0.7,
    'log_every': 7,
    'checkpoint__every_examples': 10**9,
    'data__crop_padding': 1,
    'cluster__speed__name': 'lognormal',
    'cluster__script': ((0.5, 'leave', 1), (1.1, 'join', 1)),
    'optimizer__sgd__momentum': 0.9,
  }
  if changed.get('route__name', 'server') == 'server':
    fields |= {
      'cluster__network__server_up_Bps': (2e5,),
      'cluster__network__server_latency_s': (0.003,),
      'route__server__servers': 2,
    }
  return small.config(**fields | changed)


@functools.cache
def straight(scheme, **changed):
  """Returns the results and the number of steps of an uninterrupted run."""
  run = small.build(eventful(scheme, **changed))
  with mock.patch.object(run.runtime, 'step', wraps=run.runtime.step) as step:
    run()
  return results(run), step.call_count


def results(run):
  """Returns all results of a run except for wall times."""
  folder = pathlib.Path(run.files.workdir)
  summary = json.loads((folder / 'summary.json').read_text())
  return {
    'params': [
      np.asarray(x)
      for x in jax.tree.leaves(run.runtime.coordinator.store.learner.params)
    ],
    'metrics': [
      small.timeless(row) for row in small.rows(run, 'metrics.jsonl')
    ],
    'summary': small.timeless(summary),
    'events': (folder / 'events.jsonl').read_bytes(),
    'trace': (folder / 'trace.json').read_bytes(),
  }


def stop(run, *, saved_at, killed_at):
  """Executes a run until it is killed after `killed_at` steps.

  Args:
    run: The run.
    saved_at: Numbers of steps after which a checkpoint is saved.
    killed_at: Number of steps.
  """
  done = 0

  def step():
    nonlocal done
    if done == killed_at:
      raise Killed
    run_step()
    done += 1

  run_step = run.runtime.step
  with (
    mock.patch.object(run.runtime, 'step', step),
    mock.patch.object(run.save_schedule, 'is_due', lambda _: done in saved_at),
  ):
    run()
