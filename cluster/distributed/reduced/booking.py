"""How an iteration that all have ended is told to the lead."""

import math
from collections.abc import Callable, Sequence

from cluster.distributed.members import Member
from cluster.distributed.reduced.books import Books, Entry
from cluster.lead import Lead


class Booking:
  """Tells the lead of iterations, one after the other.

  Attributes:
    exposed_s: Of the last one, for which nobody computed.
  """

  def __init__(
    self,
    lead: Lead,
    books: Books,
    members: Sequence[Member],
    iteration_bytes: Callable[[int], int],
  ):
    """Has told nothing yet.

    Args:
      lead: Who is told.
      books: What workers have written.
      members: All workers.
      iteration_bytes: Returns what crosses the network in an iteration of so
        many workers.
    """
    self.exposed_s = 0.0
    self._lead, self._books, self._members = lead, books, members
    self._iteration_bytes = iteration_bytes

  def __call__(
    self,
    numbers: Sequence[float],
    members: Sequence[int],
    joining: Sequence[int],
    *,
    dealt_at: float,
    time: float,
  ) -> None:
    """Tells the lead, which asks the scheme.

    Args:
      numbers: The books, summed.
      members: Who took part, ascending.
      joining: Who takes part from the next one on.
      dealt_at: When the iteration was dealt, seconds of the run.
      time: When it ended.

    Raises:
      FloatingPointError: If a loss or a gradient is not finite.
    """
    entries, lead = self._books.read(numbers), self._lead
    for index in members:
      entry, iteration = entries[index][0], lead.workers[index].iteration
      if not entry.finite:
        raise FloatingPointError(
          f'The loss ({entry.loss}) or the gradient of worker {index}, '
          f'iteration {iteration}, is not finite.'
        )
    computed = {k: dealt_at + entries[k][0].computed for k in members}
    last = min(max(computed.values()), time)
    self.exposed_s = time - last
    for index in members:
      moments = {
        'compute': dealt_at + entries[index][0].began,
        'wait': computed[index],  # For others to have computed.
        'push': last,
      }
      self._enter(index, moments, time)
    for index in joining:
      lead.join(index, time)
    lead.carried(self._iteration_bytes(len(members)))
    for index in members:
      self._push(index, *entries[index], time=time)

  def _enter(self, index: int, moments: dict[str, float], time: float) -> None:
    """Books phases; clocks are compared to within a round trip."""
    since = self._lead.workers[index].since
    for phase, at in moments.items():
      since = min(max(since, at), time)
      self._lead.enter(index, phase, since)

  def _push(
    self, index: int, entry: Entry, factors: tuple[float, ...], *, time: float
  ) -> None:
    member, lead = self._members[index], self._lead
    member.compilations[member.life] = entry.compilations
    examples = lead.workers[index].examples
    member.pace.computed.append((entry.compute_s, examples))
    lead.push(
      index,
      time,
      compute_s=entry.compute_s,
      factors=factors,
      computed=entry.examples,
      loss=None if math.isnan(entry.loss) else entry.loss,
    )
