"""The part of a follower in a run: it computes what its leader announces."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from absl import logging

from cluster.islands.meeting import Follower, end_lost
from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.process import stops
from cluster.process.exits import Exit, Reason, end
from learning.island import IslandPushes
from learning.iteration import Iteration
from outputs import terminal
from system import processes


class FollowerSite:
  """A `Site` (see `cluster.runtime`) without a coordinator or a worker."""

  is_coordinator = False
  make_run: Callable[[], Any]
  clock: Literal['real'] = 'real'

  def __init__(self, follower: Follower | None, pushes: IslandPushes | None):
    """Creates the site.

    Args:
      follower: Connection to the leader; None if the run has finished before.
      pushes: Computation of pushes, with the leader; None likewise.
    """
    self._follower, self._pushes = follower, pushes

  def __call__(self) -> None:
    """Computes until the leader ends, and ends the process with its code.

    SIGTERM and SIGHUP are for the leader: this process ends with it.

    Raises:
      Exit: With the leader's code, if that is not 0.
    """
    if self._follower is None or self._pushes is None:
      logging.info('The run has finished before.')
      return
    stops.handle_termination(self._ignore)
    message = self._follow(self._follower, self._pushes)
    logging.info('The leader has ended with code %d.', message.code)
    if message.at_once:  # It does not leave jax.distributed with this process.
      end(message.code, Reason.STOPPED, message.reason)
    if message.code:
      raise Exit(message.code, Reason.STOPPED, message.reason)

  def _follow(
    self, follower: Follower, pushes: IslandPushes
  ) -> messages.LeaderEnded:
    """Computes until the leader ends; returns its last announcement."""
    lost = f'Worker {follower.index} has lost its leader'
    try:
      while True:
        message = follower.receive()
        if isinstance(message, messages.LeaderEnded):
          return message
        self._handle(follower, pushes, message)
    except TransportError as error:
      end_lost(f'{lost}: {error}')
    except jax.errors.JaxRuntimeError as error:
      found = follower.find_end()
      if found is None:
        end_lost(f'{lost}: XLA: {error}', error)
      return found

  def _handle(
    self,
    follower: Follower,
    pushes: IslandPushes,
    message: messages.PrepareExamples
    | messages.WarmUpIsland
    | messages.ComputePush,
  ) -> None:
    match message:
      case messages.PrepareExamples():
        pushes.prepare(message.ranges)
      case messages.WarmUpIsland():
        pushes.warm_up(None, message.examples, changing=message.changing)
      case messages.ComputePush():
        iteration = Iteration(
          message.ranges,
          follower.index,
          message.iteration,
          message.scale,
          message.rate,
        )
        pushes.follow_push(iteration, has_state=message.has_state)

  def _ignore(self, number: int, frame: object) -> None:
    """Leaves a signal to the leader, once; the next one ends the process."""
    del frame
    terminal.drop_if_lost()
    name = processes.Signals(number).name
    logging.info('%s: the leader of the island ends this process.', name)
    if number != processes.SIGHUP:  # A terminal that closes may repeat it.
      processes.handle_signal(number, processes.SIG_DFL)
