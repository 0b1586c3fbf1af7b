"""Measurements as processes: flags in, records out as JSON."""

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

Records = Sequence[Mapping[str, object]]


def answer(measure: Callable[..., Records], *, keeps: bool = False) -> None:
  """Prints what is measured with the seed and the scale of the flags.

  Args:
    measure: Is given both by name.
    keeps: Whether it is given a folder, too, `kept`, in which what it has
      measured stays for the same command, should this one be ended.
  """
  parser = argparse.ArgumentParser()
  parser.add_argument('--seed', type=int, required=True)
  parser.add_argument('--scale', required=True)
  parser.add_argument('--kept', type=pathlib.Path, required=keeps)
  given = parser.parse_args()
  own = {'kept': given.kept} if keeps else {}
  records = measure(seed=given.seed, scale=given.scale, **own)
  print(json.dumps([*records]))
