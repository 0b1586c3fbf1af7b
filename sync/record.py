"""Recorded events of a scheme and its decisions, as rows that JSON can hold.

A scheme of the same settings that gets the same events returns the same
decisions, to the last bit: `replay` checks a recorded run against the code of
today.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sync.scheme import Decision, Push, Scheme

Row = dict[str, Any]


def apply_event(scheme: Scheme, event: str, **fields: Any) -> Decision:
  """Calls the scheme's method for an event and returns its decision.

  Args:
    scheme: Scheme that the event changes in place.
    event: Name of the method: 'start', 'push', 'wake', 'leave' or 'join'.
    **fields: Arguments of the method; for a push the fields of Push.

  Raises:
    ValueError: If no method handles such an event.
  """
  if event == 'push':
    return scheme.push(Push(**fields))
  handlers: dict[str, Callable[..., Decision]] = {
    'start': scheme.start,
    'wake': scheme.wake,
    'leave': scheme.leave,
    'join': scheme.join,
  }
  if event not in handlers:
    raise ValueError(
      f'event: expected start, push, wake, leave or join, got {event!r}.'
    )
  return handlers[event](**fields)


def push_fields(push: Push) -> Row:
  """Returns the fields of a push, without `weight` where it is `examples`."""
  fields = push._asdict()
  if push.weight is None:
    del fields['weight']
  return fields


def encode_row(event: str, fields: Row, decision: Decision) -> Row:
  """Returns the row of an event, without decision fields at their defaults.

  Args:
    event: Name of the event, as in `apply_event`.
    fields: Arguments of the event, by name.
  """
  changed = {
    field: value
    for field, value in decision._asdict().items()
    if value != Decision._field_defaults[field]
  }
  return {'event': event, **fields, 'decision': changed}


def replay(scheme: Scheme, rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
  """Yields each recorded row beside the row that `scheme` gives for it.

  Args:
    scheme: Scheme with the settings of the recorded run, before its first
      event; changed in place.
    rows: Rows of `encode_row`, in the order of the events.

  Raises:
    ValueError: If the scheme refuses an event.
  """
  for recorded in rows:
    fields = {
      k: v for k, v in recorded.items() if k not in ('event', 'decision')
    }
    decision = apply_event(scheme, recorded['event'], **fields)
    replayed = encode_row(recorded['event'], fields, decision)
    yield _convert_tuples(recorded), _convert_tuples(replayed)


def _convert_tuples(row: Row) -> Row:
  """Returns the row with the lists that JSON has in place of tuples."""
  decision = {
    field: list(value) if isinstance(value, tuple) else value
    for field, value in row['decision'].items()
  }
  return row | {'decision': decision}
