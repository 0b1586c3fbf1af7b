"""Runs on real hosts whose processes are threads of this one, for tests."""

import pathlib
import threading
from typing import Any
from unittest import mock

from ml_collections import ConfigDict

import train
from cluster.distributed import process, roles


def run(config: ConfigDict, folder: pathlib.Path, **own: Any) -> list[Any]:
  """Returns the parts of a run that has ended; that of the lead comes first.

  Args:
    config: Of workers who sum among themselves.
    folder: Of the run.
    **own: Of train.build.
  """
  lead = f'127.0.0.1:{roles.free_ports(1)[0]}'
  parts = [
    train.build(
      config,
      workdir=str(folder),
      process={'role': f'worker:{index}', 'lead': lead},
      **own,
    )
    for index in range(config.cluster.workers)
  ]
  # Signals are for main threads.
  with mock.patch.object(process, '_leave_it_to_the_lead'):
    threads = [threading.Thread(target=part) for part in parts[1:]]
    for thread in threads:
      thread.start()
    try:
      parts[0]()
    finally:
      for thread in threads:
        thread.join()
  return parts
