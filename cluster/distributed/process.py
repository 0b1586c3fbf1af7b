"""What every process of a run on real hosts has, whatever its route."""

import functools
import itertools
import os
import secrets
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, NoReturn

from absl import logging
from ml_collections import ConfigDict

from cluster.distributed import faults, roles
from cluster.distributed.faults import Phase
from cluster.distributed.pace import Deadlines, Jobs
from cluster.runtime import Parts
from cluster.transport.greeting import Security
from cluster.transport.heart import STOPPED
from outputs.manifests import fingerprint


class Meeting(NamedTuple):
  """Where a process meets the others.

  Attributes:
    role: Of this process.
    address: Of its host, to listen on.
    finished: Whether the run is over already, so that nobody is to be met.
    devices: How many it computes gradients on.
    security: Of all streams.
  """

  role: roles.Role
  address: str
  finished: bool
  devices: int
  security: Security


class Settings(NamedTuple):
  """What all processes of a run agree on, but for address and identity.

  Attributes:
    address: Of this host, to listen on.
    fingerprint: Of the run.
    security: Of all streams.
    timeout_s: Silence after which a process counts as lost.
    start_s: Until all have to be there.
    process: Identity of this process, random, by which the lead tells one that
      has connected again from another one of the same rank.
    adapt: As of `route.route.Reduced`.
  """

  address: str
  fingerprint: str
  security: Security
  timeout_s: float
  start_s: float
  process: str
  adapt: bool = False


class Process:
  """A process of a run: what `Site` of `cluster.runtime` asks of all of them.

  Attributes:
    clock: What times are.
    meeting: Which process this is, and where the others are.
    parts: What the run is made of.
    settings: What it agrees on with the others.
    faults: What goes wrong on purpose.
    deadlines: After which a process that does not go on counts as lost.
    jobs: That the lead has others do.
  """

  clock: Literal['real'] = 'real'

  def __init__(
    self,
    config: ConfigDict,
    meeting: Meeting,
    parts: Parts,
    *,
    servers: int,
    windows: bool,
  ):
    """Makes what all processes of a run know.

    Args:
      config: Of the run.
      meeting: Which process this is, and where the others are.
      parts: What the run is made of.
      servers: How many there are that faults may befall.
      windows: As of `Deadlines`.

    Raises:
      ValueError: If a setting is wrong; names the field.
    """
    self.meeting, self.parts = meeting, parts
    self.settings = Settings(
      meeting.address,
      fingerprint(parts.described),
      meeting.security,
      config.cluster.timeout_s,
      config.cluster.start_s,
      process=secrets.token_hex(16),
    )
    self.faults = faults.make(config, servers, parts.files.workdir / 'faults')
    self.deadlines = Deadlines(
      timeout_s=config.cluster.timeout_s,
      start_s=config.cluster.start_s,
      windows=windows,
    )
    self.jobs = Jobs(self.deadlines)
    self._evaluations = itertools.count()

  def __call__(self) -> None:
    """Takes part in a run that another process leads.

    Raises:
      SystemExit: With LOST if the cluster is lost: starting again may help.
        With STOPPED if the lead has ended the run before it has finished.
    """
    if self.meeting.finished:
      logging.info('The run has finished before.')
      return
    _leave_it_to_the_lead()
    if not self._take_part():
      sys.exit(STOPPED)

  def _take_part(self) -> bool:
    """Returns whether the run has finished, once it is over."""
    raise NotImplementedError

  @property
  def _of_reception(self) -> dict[str, Any]:
    """Arguments of a `Reception`, but for the number of workers."""
    settings = self.settings
    return {
      'host': settings.address,
      'port': int(self.meeting.role.lead.rpartition(':')[2]),
      'fingerprint': settings.fingerprint,
      'security': settings.security,
      'timeout_s': settings.timeout_s,
      'start_s': settings.start_s,
      'jobs': self.jobs,
    }

  @property
  def _of_leading(self) -> dict[str, Any]:
    """Arguments of a `Leading` that say how long it waits."""
    return {
      'timeout_s': self.settings.timeout_s,
      'start_s': self.settings.start_s,
      'deadlines': self.deadlines,
    }

  @functools.cached_property
  def later(self) -> Callable[[Callable[[], Any]], Future]:
    """Calls a function in another thread, for the process that leads."""
    pool = ThreadPoolExecutor(1)
    return lambda call: pool.submit(self._evaluated, call)

  def _evaluated(self, call: Callable[[], Any]) -> Any:
    """Returns what an evaluation does, in a thread of its own."""
    self.jobs.begin('an evaluation')
    try:
      number = next(self._evaluations)
      due = self.faults.due('server:0', number, Phase.EVALUATION)
      self.faults.happen(due)
      return call()
    finally:
      self.jobs.end('an evaluation')


def end(code: int) -> NoReturn:
  """Ends this process, whatever its other threads do."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _leave_it_to_the_lead() -> None:
  """Does not heed the first SIGTERM.

  Where all processes get it, the lead saves a checkpoint and then ends the
  others.
  """
  signal.signal(signal.SIGTERM, _wait_for_the_lead)


def _wait_for_the_lead(number: int, frame: object) -> None:
  del frame
  logging.info('SIGTERM: it is for the lead to end the run.')
  signal.signal(number, signal.SIG_DFL)
