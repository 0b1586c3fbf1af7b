"""Runs with a real network whose processes are threads, for tests."""

import copy
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from ml_collections import ConfigDict

import train
from cluster.membership import process
from cluster.process import roles


def run(
  config: ConfigDict,
  folder: pathlib.Path,
  *,
  devices: Sequence[int] = (),
  call: Callable[[Any], object] = lambda part: part(),
  **arguments: Any,
) -> list[Any]:
  """Executes a run; returns its parts, the coordinator's first.

  Args:
    config: Config of an allreduce run.
    folder: Folder of the run.
    devices: Devices of each worker's process; by default those of the config.
    call: Trains, given the coordinator's part.
    **arguments: Arguments of train.build.
  """
  coordinator = f'127.0.0.1:{roles.free_ports(1)[0]}'
  configs = [copy.deepcopy(config) for _ in range(config.cluster.workers)]
  for each, count in zip(configs, devices, strict=False):
    each.cluster.devices_per_worker = count
  parts = [
    train.build(
      each,
      workdir=str(folder),
      process={'role': f'worker:{index}', 'coordinator': coordinator},
      **arguments,
    )
    for index, each in enumerate(configs)
  ]
  # Only main threads can handle signals.
  with mock.patch.object(process.RealSite, '_defer_termination'):
    threads = [threading.Thread(target=part) for part in parts[1:]]
    for thread in threads:
      thread.start()
    try:
      call(parts[0])
    finally:
      for thread in threads:
        thread.join()
  return parts
