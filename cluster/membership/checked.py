"""Validates the messages of other processes on arrival.

A process that knows the token may run another version or be faulty.  A
malformed message must neither be used as a valid one nor stop a thread of the
receiver: the functions here raise an error that ends the connection instead.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from cluster.network import sockets
from cluster.network.streams import Closed, Refused

_MOST_DEVICES = 1024  # Of a process.
_DOING = 200  # Characters that are shown again and again.
_PROCESS = re.compile('[0-9a-f]{32}')

Fields = Mapping[str, Callable[[Any], bool]]


def is_number(value: Any) -> bool:
  """Returns whether it is a number that a float holds."""
  # JSON has numbers that no float holds.
  return type(value) in (int, float) and abs(value) < 2**1000


def is_count(value: Any) -> bool:
  """Returns whether it is a number of things."""
  return type(value) is int and 0 <= value < 2**53


def is_text(value: Any) -> bool:
  """Returns whether it is text."""
  return isinstance(value, str)


def _is_doing(value: Any) -> bool:
  return is_text(value) and len(value) <= _DOING and value.isprintable()


def is_figures(value: Any) -> bool:
  """Returns whether it is numbers by name, or None for none."""
  if not isinstance(value, dict):
    return value is None
  return all(is_text(name) and is_number(n) for name, n in value.items())


def is_address(value: Any) -> bool:
  """Returns whether it is 'IPv4 address:port'."""
  if not is_text(value):
    return False
  host, _, port = value.rpartition(':')
  number = port.isascii() and port.isdecimal() and len(port) < 6
  return sockets.is_specific(host) and number and 0 < int(port) < 2**16


def _is_pace(value: Any) -> bool:
  match value:
    case ['transfer' | 'compute', iteration, steps]:
      return is_count(steps) and (iteration == -1 or is_count(iteration))
  return False


def _is_orders(value: Any) -> bool:
  """Returns whether it is what a server does, or None before it does any."""
  if not isinstance(value, dict):
    return value is None
  usual_s = value.get('usual_s')
  return (
    is_count(value.get('obeyed'))
    and _is_doing(value.get('order'))
    and is_number(value.get('since_s'))
    and (usual_s is None or is_number(usual_s))
  )


def is_devices(value: Any) -> bool:
  """Returns whether it is kinds of devices, or None for unknown ones."""
  if value is None:
    return True
  known = isinstance(value, list) and len(value) <= _MOST_DEVICES
  return known and all(map(_is_doing, value))


# Of a push; None stands for a loss that there is not.
_REPORT: Fields = {
  'iteration': is_count,
  'pulled_at': is_number,
  'computed_at': is_number,
  'compute_s': is_number,
  'factors': lambda value: (
    isinstance(value, list) and all(map(is_number, value))
  ),
  'loss': lambda value: value is None or is_number(value),
  'finite': lambda value: type(value) is bool,
  'computed': is_count,
  'compilations': is_count,
  'recalled': lambda value: type(value) is bool,
}
_LIFE: Fields = {'worker': is_count, 'life': is_count}
# By the field that tells what is said; None stands for one that is not there.
Words = Mapping[str, Fields]
OF_WORKERS: Words = {
  'doing': {'doing': _is_doing},
  'ready': {'ready': lambda value: value is True, 'devices': is_devices},
  'beat': {'beat': is_number, 'pace': _is_pace},
}
_SERVER: Mapping[str, Fields] = {
  'doing': {'doing': _is_doing},
  'address': {'address': is_address},
  'beat': {'beat': is_number, 'orders': _is_orders},
  'event': {'event': lambda value: False},  # See `_TOLD`.
}
_TOLD: Mapping[str, Fields] = {
  'arrived': {**_LIFE, **_REPORT},
  'failed': {**_LIFE, 'reason': is_text},
  'unmendable': {'reason': is_text},
  'snapshot': {'id': is_count, 'size_bytes': is_count},
  'saved': {
    'id': is_count,
    'error': lambda value: value is None or is_text(value),
  },
}


def hello(said: Any, *, workers: int, servers: int) -> dict[str, Any]:
  """Returns the validated handshake of a process with the coordinator.

  Args:
    said: `fingerprint`, `process` (its identity, 32 hexadecimal digits), and
      either `worker` or `server`.
    workers: Number of workers.
    servers: Number of servers; the first is in the coordinator's process.

  Raises:
    Refused: If the message is not of this form.
  """
  if _says_who(said):
    match said.keys() & {'worker', 'server'}, said.get('server'):
      case roles, _ if roles == {'worker'}:
        if is_count(said['worker']) and said['worker'] < workers:
          return said
      case roles, int(index) if roles == {'server'}:
        if 0 < index < servers and type(index) is int:
          return said
  raise Refused(
    f'expected one of {workers} workers or {servers - 1} servers, got another '
    'hello'
  )


def _says_who(said: Any) -> bool:
  """Returns whether a handshake names the run and the process's identity."""
  if not isinstance(said, dict):
    return False
  process = said.get('process')
  known = is_text(process) and _PROCESS.fullmatch(process) is not None
  return known and is_text(said.get('fingerprint'))


def key(said: Any) -> tuple[int, int]:
  """Returns worker and incarnation number from a handshake with a server.

  Raises:
    Refused: If the message does not hold both.
  """
  if isinstance(said, dict):
    worker, life = said.get('worker'), said.get('life')
    if is_count(worker) and is_count(life):
      return worker, life
  raise Refused('expected a worker and its life, got another hello')


def of_server(said: Any, peer: str) -> dict[str, Any]:
  """Returns a validated message of a server that has passed the handshake.

  Raises:
    Closed: If the message has none of the known forms.
  """
  return words(said, peer, _SERVER, _TOLD)


def wrong_in_report(header: Any) -> str:
  """Returns the first error in the header of a push; '' if it is valid."""
  if not isinstance(header, dict):
    return f'Expected a report, got {type(header).__name__}.'
  for name, is_valid in _REPORT.items():
    if name not in header or not is_valid(header[name]):
      return f'Expected a valid {name}, got {header.get(name)!r}.'[:200]
  return ''


def words(
  said: Any, peer: str, forms: Words, told_forms: Words | None = None
) -> dict[str, Any]:
  """Returns the known fields of a message that follows the handshake.

  Args:
    said: The message.
    peer: Address of the sender.
    forms: Fields of each form and their checks, by the field that only that
      form has.
    told_forms: The same for messages with a field 'event', by its value.

  Raises:
    Closed: If the message has none of these forms.
  """
  kinds = said.keys() & forms.keys() if isinstance(said, dict) else ()
  if len(kinds) == 1:
    kind = min(kinds)
    fields, told = forms[kind], said.get('event')
    if isinstance(told, str):
      fields = (told_forms or {}).get(told, fields)
    if all(is_valid(said.get(name)) for name, is_valid in fields.items()):
      # Other fields are dropped: the receiver adds sender and time itself.
      return {name: said[name] for name in (kind, *fields) if name in said}
  raise Closed(f'{peer}: it has said what no process says')
