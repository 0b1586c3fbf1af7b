"""Writes scalars for TensorBoard, in the thread of the caller.

The writer of tensorboardX has a thread; if that meets an error, such as a full
disk, callers wait for it forever.  Here they get the error.
"""

import pathlib

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2

from system import clock

_PREFIX = 'events'  # Of the name of the file.


class Board:
  """Writer of one new file of TensorBoard events.

  Args:
    folder: Folder of the run, in which the file is created.

  Raises:
    OSError: From every method, if the file cannot be written.
  """

  def __init__(self, folder: pathlib.Path):
    self._writer = EventsWriter(str(folder / _PREFIX))

  def plot(self, name: str, value: float, step: int) -> None:
    """Adds a point to the curve `name`; `step` is its horizontal place."""
    point = summary.scalar(name, value)
    event = event_pb2.Event(wall_time=clock.wall(), step=step, summary=point)
    self._writer.write_event(event)

  def flush(self) -> None:
    """Lets other processes read what was added."""
    self._writer.flush()

  def close(self) -> None:
    """Completes the file, and closes it."""
    self._writer.close()
