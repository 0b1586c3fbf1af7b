"""Measurements as processes: flags in, records out as JSON."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence

Records = Sequence[Mapping[str, object]]


def answer(measure: Callable[..., Records]) -> None:
  """Prints what is measured with the seed and the scale of the flags."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--seed', type=int, required=True)
  parser.add_argument('--scale', required=True)
  given = parser.parse_args()
  print(json.dumps([*measure(seed=given.seed, scale=given.scale)]))
