"""What a scheme was told and what it said, as rows that JSON can hold.

Telling a fresh scheme the same events gives the same decisions, to the last bit:
`replay` checks a recorded run against the schemes of today.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from sync.scheme import Decision, Push, Scheme

Row = dict[str, Any]


def tell(scheme: Scheme, told: str, **event: Any) -> Decision:
  """Calls the method `told` of a scheme.

  Args:
    scheme: Changed in place.
    told: 'start', 'push', 'wake', 'leave' or 'join'.
    **event: The method's arguments; for a push the fields of Push.

  Raises:
    ValueError: If there is no such method.
  """
  if told == 'push':
    return scheme.push(Push(**event))
  if told not in ('start', 'wake', 'leave', 'join'):
    raise ValueError(
      f'told: expected start, push, wake, leave or join, got {told!r}.'
    )
  return getattr(scheme, told)(**event)


def row(told: str, event: Row, decision: Decision) -> Row:
  """Returns one row; fields of the decision at their defaults are left out."""
  said = {
    field: value
    for field, value in decision._asdict().items()
    if value != Decision._field_defaults[field]
  }
  return {'event': told, **event, 'decision': said}


def replay(scheme: Scheme, rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
  """Yields each recorded row beside the row that `scheme` gives for it.

  Args:
    scheme: As made for the recorded run, and not told anything yet.
    rows: The recorded rows, in order.
  """
  for recorded in rows:
    event = {
      k: v for k, v in recorded.items() if k not in ('event', 'decision')
    }
    decision = tell(scheme, recorded['event'], **event)
    yield _as_json(recorded), _as_json(row(recorded['event'], event, decision))


def _as_json(recorded: Row) -> Row:
  said = {
    field: list(value) if isinstance(value, tuple) else value
    for field, value in recorded['decision'].items()
  }
  return recorded | {'decision': said}
