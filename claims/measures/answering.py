"""Command line of measurements, which print their records as JSON."""

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

Records = Sequence[Mapping[str, object]]


def print_records(
  measure: Callable[..., Records], *, uses_folder: bool = False
) -> None:
  """Prints the records of a measurement with the flags of this process.

  Args:
    measure: Function of the keyword arguments `seed` and `scale`.
    uses_folder: True if it also takes `folder`, in which parts of the
      measurement are stored, so that the same command resumes it.
  """
  parser = argparse.ArgumentParser()
  parser.add_argument('--seed', type=int, required=True)
  parser.add_argument('--scale', required=True)
  parser.add_argument('--folder', type=pathlib.Path, required=uses_folder)
  args = parser.parse_args()
  options = {'folder': args.folder} if uses_folder else {}
  records = measure(seed=args.seed, scale=args.scale, **options)
  print(json.dumps([*records]))
