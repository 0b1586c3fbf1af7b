"""Measures the rungs of GradientFlow's ladder on real links, in a lab.

Labs need root.  Seeds are repetitions, which take the rungs in turned orders.
"""

import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Mapping

from bench import hosts
from bench.lab import running, tables
from bench.lab.conditions import Lab
from bench.lab.tables import Setting

CASE = 'equal4'
_SIZES = {'quick': '5', 'full': '25'}  # MB.
_ROUNDS = 6
_RUNGS = 'tensors', 'fused', 'half', 'overlap', 'ahead', 'sparse', 'both'


def measure(
  *, seed: int, scale: str, folder: pathlib.Path
) -> list[Mapping[str, object]]:
  """Returns the seconds of a step, and their exposed part, of each rung.

  Raises:
    RuntimeError: If a run fails.
  """
  lab = Lab(CASE, hosts.cases()[CASE])
  setting = Setting(lab, hosts.BASE_MBIT, _SIZES[scale], _ROUNDS)
  schemes = tables.TABLES['ladder'].schemes
  place = seed % len(_RUNGS)
  rungs = (*_RUNGS[place:], *_RUNGS[:place])
  wanted = [
    tables.make_condition(rung, schemes[rung], setting) for rung in rungs
  ]
  out = pathlib.Path(tempfile.mkdtemp(dir=folder))
  with contextlib.redirect_stdout(sys.stderr):
    results = running.measure(out, lab, wanted)
  records: list[Mapping[str, object]] = []
  for rung in rungs:
    took = running.require_finished(rung, results[rung])
    step_s = took['median_s']
    exposed_s = step_s - took['compute_s']
    records.append({'rung': rung, 'step_s': step_s, 'exposed_s': exposed_s})
  return records
