"""Checks of recorded decisions against schemes that decide again."""

from tools import replay


def check(case, folder):
  """Fails unless a run has events, and their decisions are repeated.

  Args:
    case: The test.
    folder: Folder of the run.
  """
  pairs = list(replay.pairs(folder))
  case.assertNotEmpty(pairs)
  for recorded, repeated in pairs:
    case.assertEqual(repeated, recorded)
