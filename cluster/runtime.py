"""What a runtime is: the interfaces between a run and where it takes place.

config.cluster.runtime is 'virtual' (`cluster.virtual.site`) or 'distributed'
(`cluster.distributed`).  Both modules have three functions, which train.build
calls in this order:

  meet(config, plan, files=..., process=...)
                                finds the other processes, before XLA starts;
                                returns what `make` needs, and how many
                                `devices` compute gradients here
  speed(config, choose)         how long workers compute, or None for as long
                                as they really take
  make(config, meeting, parts)  returns the Site of this process
"""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal, Protocol

from batching.batching import Batching
from cluster.coordinator import Coordinator
from cluster.speed.speed import Speed
from learning.learning import Evaluation, Learning, ParameterStore
from outputs.files import RunFiles
from route.route import Plan
from wire.codec import Wire


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a site is made of.

  Attributes:
    learned: What is learned.
    batching: How many examples iterations have.
    wire: What travels.
    plan: Where it travels.
    speed: How long workers compute; None for as long as they really take.
    files: Of the run.
    described: Its manifest.
  """

  learned: Learning
  batching: Batching
  wire: Wire
  plan: Plan
  speed: Speed | None
  files: RunFiles
  described: Mapping[str, Any]

  def stage(self, store: ParameterStore) -> int:
    """Returns which of the wire's codecs of gradients is used now."""
    done = {'examples': store.examples, 'updates': store.version}
    return self.wire.stage(self.learned.epochs(**done))


class Runtime(Protocol):
  """Tells the coordinator what happens, and carries out what it says.

  Attributes:
    time: Seconds since the start, of this process and those before it.
    coordinator: Asks the scheme.
  """

  time: float
  coordinator: Coordinator

  def warm_up(self) -> None:
    """Compiles everything that the run will need."""

  def start(self) -> None:
    """Releases the first iterations; once, and not after `restore`."""

  def resume(self) -> None:
    """Goes on after `restore`."""

  def step(self) -> None:
    """Goes on to the next event and carries out all that follows from it.

    Raises:
      RuntimeError: If nothing can happen any more.
      FloatingPointError: If a loss or a gradient is not finite.
    """

  def pause(self) -> bool:
    """Returns whether `state` may be called; if not, further steps lead to it.

    The step after that continues the run.
    """

  def state(self) -> dict[str, Any]:
    """Returns all that a step changes, as far as it is kept here."""

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the runtime's from now on."""

  def close(self) -> None:
    """Ends the run, however it went."""

  def summary(self) -> dict[str, Any]:
    """Returns what summary.json says of this runtime alone."""


class Saving(Protocol):
  """Writer and reader of a run's checkpoints: see `outputs.checkpoints`."""

  def restore(self) -> Any:
    """Returns the state of the newest readable checkpoint; None without one."""

  def is_writing(self) -> bool:
    """Returns whether a save has to be put off until the last one has ended."""

  def save(self, state: Any) -> None:
    """Writes a checkpoint while the run goes on."""

  def close(self) -> None:
    """Waits for the checkpoint that is being written."""


class Site(Protocol):
  """What one process has of a run, and its part in it.

  Attributes:
    is_coordinator: Whether it is the coordinator: others only call the site.
    clock: What times are.
    store: Of the learner.
    checkpoints: Of the run.
    evaluate: Gives the accuracy of a version; None if nothing is learned.
    later: Calls a function in another thread, where time goes on meanwhile;
      None to call it at once.
  """

  is_coordinator: bool
  clock: Literal['real', 'virtual']
  store: ParameterStore
  checkpoints: Saving
  evaluate: Evaluation | None
  later: Callable[[Callable[[], Any]], Future[Any]] | None

  def runtime(self, coordinator: Coordinator) -> Runtime:
    """Returns what runs the events, for the process that is the coordinator."""

  def __call__(self) -> None:
    """Takes part in a run that another process coordinates."""
