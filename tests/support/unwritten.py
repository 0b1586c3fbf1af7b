"""Folder of a run that is never written."""

from typing import Any
from unittest import mock

from outputs.files import RunFiles
from outputs.rows import Rows


def files() -> Any:
  """Returns mocks of a run's folder and of its `rows`."""
  result = mock.create_autospec(RunFiles, instance=True)
  result.rows = mock.create_autospec(Rows, instance=True)
  result.rows.state.return_value = {}
  return result
