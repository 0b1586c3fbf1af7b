"""Injected failures that workers and coordinators of all routes can have.

These are the failures of an incarnation's start, of the end of the run, and of
the coordinator's evaluations; `cluster.process.faults` describes them.
"""

from collections.abc import Callable
from typing import Any

from cluster.membership.process import RealSite
from cluster.membership.session import Session
from cluster.process.faults import Faults, Phase


class FaultyRealSite(RealSite):
  """A process whose evaluations fail as the config says.

  Attributes:
    faults: Failures to inject; set before the process is initialised.
  """

  faults: Faults

  def _evaluate(self, call: Callable[[], Any]) -> Any:
    """Returns the result of an evaluation, after the failure that is due."""

    def evaluate() -> Any:
      self.faults.strike_evaluation()
      return call()

    return super()._evaluate(evaluate)


def strike_end(faults: Faults, worker: int, session: Session[Any]) -> None:
  """Carries out what is due at the end of a run that has finished."""
  if session.heartbeat.end.is_finished:
    faults.strike(worker, -1, Phase.END)
