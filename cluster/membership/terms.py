"""Terms of coordinators, by files in the run's folder.

  terms/3            created exclusively by the coordinator of term 3, when its
                     first membership epoch begins
  terms/run          random identity of the run, by which its processes know
                     each other: ports are used again, and runs may share a
                     token
  coordinator.json   the newest coordinator: its term, address and rank, and the
                     addresses of the members of its epoch

The coordinator of a run that starts takes the term after the highest one.  All
processes of a run share its folder, which so gives each term to one process
only, as `election` requires.  A process that joins later finds the coordinator
by the second file.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from cluster.membership import rendezvous_files
from outputs import atomic

FOLDER, FILE = 'terms', 'coordinator.json'
_IDENTITY = 'run'  # In `FOLDER`.


class Place(NamedTuple):
  """Content of coordinator.json.

  Attributes:
    term: Term of the coordinator.
    worker: Rank of the worker in its process.
    address: 'address:port' at which it listens.
    members: Address of each member of its epoch, by rank.
  """

  term: int
  worker: int
  address: str
  members: Mapping[int, str]


class Terms:
  """The terms of one run."""

  def __init__(self, workdir: pathlib.Path):
    """Creates no file.

    Args:
      workdir: Folder of the run.
    """
    self._folder, self._file = workdir / FOLDER, workdir / FILE

  @property
  def newest(self) -> int:
    """The highest term that has begun; 0 before the first.

    Raises:
      OSError: If the folder cannot be read.
    """
    try:
      names = [path.name for path in self._folder.iterdir()]
    except FileNotFoundError:
      return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)

  def identify(self) -> str:
    """Returns the random identity of the run, which the first caller creates.

    Raises:
      OSError: If the file cannot be read or created.
    """
    self._folder.mkdir(exist_ok=True)
    path = rendezvous_files.make_token(self._folder / _IDENTITY)
    return path.read_text().strip()

  def take(self, term: int, worker: int) -> bool:
    """Takes a term; returns False if a process has it already.

    Args:
      term: The term.
      worker: Rank of the worker in the process of the coordinator.

    Raises:
      OSError: If the file cannot be created.
    """
    self._folder.mkdir(exist_ok=True)
    try:
      with (self._folder / str(term)).open('x') as file:
        file.write(f'worker {worker}\n')
    except FileExistsError:
      return False
    atomic.sync_folder(self._folder)
    return True

  def publish(self, place: Place) -> None:
    """Writes the coordinator and its members for processes that join later.

    Raises:
      OSError: If the file cannot be written.
    """
    content = json.dumps(place._asdict() | {'members': dict(place.members)})
    atomic.write(self._file, content + '\n', mode=0o600)

  def find(self) -> Place | None:
    """Returns the newest coordinator that was published; None for none.

    Raises:
      OSError: If the file is there and cannot be read.
    """
    found = atomic.read_object(self._file)
    if found is None:
      return None
    try:
      return Place(
        term=int(found['term']),
        worker=int(found['worker']),
        address=str(found['address']),
        members={int(k): str(v) for k, v in found['members'].items()},
      )
    except (LookupError, TypeError, ValueError, AttributeError):
      return None  # Of another version, or edited.

  def forget(self) -> None:
    """Removes the published coordinator: a new one starts from a checkpoint.

    Raises:
      OSError: If the file cannot be removed.
    """
    self._file.unlink(missing_ok=True)
