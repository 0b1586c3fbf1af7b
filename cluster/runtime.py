"""Interfaces of runtimes, which carry out the events of a run.

config.cluster.runtime is 'virtual' (`cluster.virtual.site`) or 'distributed'
(`cluster.distributed`).  Both modules have three functions, which train.build
calls in this order:

  meet(config, plan, files=..., process=...)
                                finds the other processes, before XLA starts;
                                returns what `make` needs, and how many
                                `devices` compute gradients here
  speed(config, choose, learned)
                                how long workers compute, or None for as long
                                as they really take
  make(config, meeting, parts)  returns the Site of this process
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from batching.batching import Batching
from cluster.coordinator import Coordinator
from cluster.speed.speed import Speed
from learning.learning import Evaluation, Learning, ParameterStore
from outputs.files import RunFiles
from route.route import Plan
from system import threads
from wire.codec import Wire


@dataclasses.dataclass(frozen=True)
class Parts:
  """Components of a run, from which a site is made.

  Attributes:
    learned: Model, data and optimizer.
    batching: Batching, which assigns examples.
    wire: Codecs of pushes and pulls.
    plan: Plan of the route.
    speed: Model of compute times; None for real ones.
    files: Writer of the run's files.
    manifest: Manifest of the run.
  """

  learned: Learning
  batching: Batching
  wire: Wire
  plan: Plan
  speed: Speed | None
  files: RunFiles
  manifest: Mapping[str, Any]

  def find_stage(self, store: ParameterStore) -> int:
    """Returns the index of the wire's codec for pushes that begin now."""
    done = {'examples': store.examples, 'updates': store.version}
    return self.wire.stage(self.learned.epochs(**done))


class Runtime(Protocol):
  """A runtime, which reports events and carries out decisions.

  Attributes:
    time: Seconds since the start, of this process and earlier ones.
    coordinator: Coordinator, which gets the events.
  """

  time: float
  coordinator: Coordinator

  def warm_up(self) -> None:
    """Compiles everything that the run will need."""

  def start(self) -> None:
    """Releases the first iterations; once, and not after `restore`."""

  def resume(self) -> None:
    """Continues after `restore`."""

  def step(self) -> None:
    """Handles the next event, or several.

    Raises:
      RuntimeError: If no event can happen any more.
      FloatingPointError: If a loss or a gradient is not finite.
    """

  def pause(self) -> bool:
    """Returns whether `state` may be called; if not, further steps lead to it.

    The step after that continues the run.
    """

  @property
  def has_successor(self) -> bool:
    """True if another process continues the run when this one ends."""

  def is_ended_by(self, number: int) -> bool:
    """Returns whether a signal to this process ends the run.

    If not, further steps follow, after which this is called again.

    Args:
      number: Number of the signal.

    Raises:
      HandedOver: If the run continues without this process.
    """

  def state(self) -> dict[str, Any]:
    """Returns the state of this process, for a checkpoint."""

  def restore(self, state: dict[str, Any]) -> None:
    """Restores the state of a checkpoint, which the runtime takes over."""

  def close(self) -> None:
    """Ends the run, complete or not."""

  def summary(self) -> dict[str, Any]:
    """Returns the fields of summary.json that only this runtime has."""


class Saving(Protocol):
  """Writer and reader of a run's checkpoints: see `outputs.checkpoints`."""

  def restore(self) -> Any:
    """Returns the state of the newest readable checkpoint; None without one."""

  def take_over(self, newest: int) -> None:
    """Continues after another process; removes checkpoints after `newest`."""

  def is_writing(self) -> bool:
    """Returns whether a save has to be put off until the last one has ended."""

  def save(self, state: Any) -> None:
    """Writes a checkpoint while the run continues."""

  def close(self) -> None:
    """Waits for the checkpoint that is being written."""


class Site(Protocol):
  """Part of one process in a run.

  Attributes:
    make_run: Function that returns the run, set by the builder where another
      process is the coordinator, which this one may succeed.
  """

  make_run: Callable[[], Any]

  @property
  def is_coordinator(self) -> bool:
    """True if the coordinator is here; other processes only call the site."""

  @property
  def clock(self) -> Literal['real', 'virtual']:
    """Kind of the run's seconds."""

  @property
  def store(self) -> ParameterStore:
    """Parameter store of the run."""

  @property
  def checkpoints(self) -> Saving:
    """Writer and reader of checkpoints."""

  @property
  def evaluate(self) -> Evaluation | None:
    """Evaluation of a version; None if nothing is learned."""

  @property
  def run_in_thread(
    self,
  ) -> Callable[[Callable[[], Any]], threads.Future[Any]] | None:
    """Calls a function in a thread beside the run; None to call it at once."""

  def runtime(self, coordinator: Coordinator) -> Runtime:
    """Returns the runtime, in the coordinator's process."""

  def __call__(self) -> None:
    """Runs this process's part of a run whose coordinator is elsewhere."""
