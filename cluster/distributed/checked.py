"""What other processes say, checked where it comes in.

Whoever knows the token may be of another version, or hit by an error: what it
says must not be taken for what it is not, nor stop a thread that others need.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cluster.transport.streams import Closed, Refused

_TOLD = ('arrived', 'failed', 'unmendable', 'snapshot', 'saved')


def _is_number(value: Any) -> bool:
  return type(value) in (int, float)


def _is_count(value: Any) -> bool:
  return type(value) is int and 0 <= value < 2**53


# Of a push; None stands for a loss that there is not.
_REPORT: Mapping[str, Callable[[Any], bool]] = {
  'iteration': _is_count,
  'pulled_at': _is_number,
  'computed_at': _is_number,
  'compute_s': _is_number,
  'factors': lambda value: (
    isinstance(value, list) and all(map(_is_number, value))
  ),
  'loss': lambda value: value is None or _is_number(value),
  'finite': lambda value: type(value) is bool,
  'computed': _is_count,
  'compilations': _is_count,
}


def hello(said: Any, *, workers: int, servers: int) -> dict[str, Any]:
  """Returns what a process says first to the lead.

  Args:
    said: `fingerprint`, and either `worker` or `server`.
    workers: How many there are.
    servers: How many there are; the first is the lead's own.

  Raises:
    Refused: If it is something else.
  """
  if isinstance(said, dict) and isinstance(said.get('fingerprint'), str):
    match said.keys() & {'worker', 'server'}, said.get('server'):
      case roles, _ if roles == {'worker'}:
        if _is_count(said['worker']) and said['worker'] < workers:
          return said
      case roles, int(index) if roles == {'server'}:
        if 0 < index < servers and type(index) is int:
          return said
  raise Refused(
    f'expected one of {workers} workers or {servers - 1} servers, got another '
    'hello'
  )


def key(said: Any) -> tuple[int, int]:
  """Returns which worker and which life of it says hello to a server.

  Raises:
    Refused: If it is something else.
  """
  if isinstance(said, dict):
    worker, life = said.get('worker'), said.get('life')
    if _is_count(worker) and _is_count(life):
      return worker, life
  raise Refused('expected a worker and its life, got another hello')


def words(said: Any, peer: str) -> dict[str, Any]:
  """Returns what a process says to the lead later, of which little is known.

  Raises:
    Closed: If it is not even that.
  """
  valid = isinstance(said, dict) and said.get('told', 'saved') in _TOLD
  if not valid or not _is_number(said.get('beat', 0)):
    raise Closed(f'{peer}: it has said what no process says')
  return said


def wrong_in_report(header: Any) -> str:
  """Returns what is wrong in the header of a push; '' if nothing is."""
  if not isinstance(header, dict):
    return f'Expected a report, got {type(header).__name__}.'
  for name, is_valid in _REPORT.items():
    if name not in header or not is_valid(header[name]):
      return f'Expected a valid {name}, got {header.get(name)!r}.'[:200]
  return ''
