"""The fault matrix: runs of `tests.soak.faults_test`, as data.

In the runs `bsp` to `servers`, `ring`, `forest` and `native`, five of six
workers die, hang, are slow and lose their links for 5 and 30 s, in every phase
of an iteration, at the start of a session and at the end of the run; the first
worker sends corrupt pushes.  In `servers` the coordinator and another server
have faults during checkpoints and evaluations.  Checkpoints and evaluations run
all the time.

In `native` no process survives the death of another: all restart from the
newest checkpoint.  This run has fewer faults, and a limit for each pause: 3
timeouts to notice the fault, as elsewhere; then the duration of the first start
of all processes, which compiles everything; the time until a cut link is up
again; and config.cluster.start_s for a start that hangs.

The other runs have four workers and a few faults each, that their names tell.
Those whose names begin with `server` have the default placement, a server in
each worker, and a mirror every 2 s, from which all continue after a death.
"""

import itertools
from typing import Any, NamedTuple

from tests.soak.disturbances import Disturbance

Entry = tuple[int | str, int, str, str]
_MANY = 6  # Workers; the first one has no faults but corrupt pushes.
_KINDS = ('die', 'hang', 'slow', 'cut:5', 'cut:30')
# Iteration of a fault by phase; for the start, the number of the session.
_PHASES = {'compute': 20, 'first': 40, 'start': 1, 'pull': 60, 'last': 80}
# Iterations of the first worker, which continues while all others are away.
_CORRUPT = {'compute': 30, 'first': 350, 'last': 400}
_APART = 3  # Iterations between the workers' faults.
# Numbers of checkpoints, and of evaluations in a session, of servers.
_SERVER_PHASES = {'checkpoint': range(40, 90, 10), 'evaluation': range(2, 7)}
# Where all processes restart: phases, and iterations between the workers'
# faults, some of which must reach a checkpoint.
_RESTART_PHASES, _RESTART_APART = ('start', 'pull', 'compute', 'end'), 10


class Run(NamedTuple):
  """A run with faults.

  Attributes:
    fields: Changed fields of the config, by dotted name.
    entries: Faults inside processes.
    workers: Number of workers.
    servers: Number of servers; 0 for one in each worker, or for none.
    is_dedicated: Whether servers have hosts of their own.
    all_restart: Whether all processes restart after each fault, and each pause
      has a limit of its own.
    disturbances: Disturbances of network and disk, by their number of pushes.
    disk: Size of the file system of the run's folder; '' for no limit.
    is_encrypted: Whether connections use TLS.
    longer_s: Seconds by which a pause may be longer: a full disk stops all, and
      so does the measuring of links for a switch.
  """

  fields: dict[str, Any]
  entries: tuple[Entry, ...] = ()
  workers: int = 4
  servers: int = 0
  is_dedicated: bool = False
  all_restart: bool = False
  disturbances: tuple[Disturbance, ...] = ()
  disk: str = ''
  is_encrypted: bool = False
  longer_s: float = 0.0


def _entries() -> tuple[Entry, ...]:
  """Returns faults such that every worker has each kind and each phase."""
  cells = [
    (
      worker,
      number if phase == 'start' else number + (worker - 1) * _APART,
      _KINDS[(worker + shift) % len(_KINDS)],
      phase,
    )
    for worker in range(1, _MANY)
    for shift, (phase, number) in enumerate(_PHASES.items())
  ]
  ends = [
    (worker, 0, _KINDS[worker % len(_KINDS)], 'end')
    for worker in range(1, _MANY)
  ]
  corrupt = [
    (0, number, 'corrupt', phase) for phase, number in _CORRUPT.items()
  ]
  return (*cells, *ends, *corrupt)


def _native_entries() -> tuple[Entry, ...]:
  """Returns faults such that each causes a separate pause.

  Faults at the start hit a different session of each worker, because all
  workers have the same number of sessions.
  """
  places = {
    phase: first
    for first, phase in zip(
      itertools.count(20, 60), _RESTART_PHASES, strict=False
    )
  }
  return tuple(
    (
      worker,
      worker
      if phase == 'start'
      else places[phase] + (worker - 1) * _RESTART_APART,
      kind,
      phase,
    )
    for worker, _, kind, phase in _entries()
    if phase in _RESTART_PHASES and kind != 'corrupt'
  )


def _server_entries() -> tuple[Entry, ...]:
  """Returns faults of each kind during checkpoints and evaluations."""
  return tuple(
    (f'server:{server}', number + server, kind, phase)
    for phase, numbers in _SERVER_PHASES.items()
    for server in range(2 if phase == 'checkpoint' else 1)
    for kind, number in zip(_KINDS, numbers, strict=False)
  )


_ALLREDUCE = {'sync.name': 'bsp'}
_SHORT = {'epochs': 20.0}
_RING = _ALLREDUCE | _SHORT | {'route.name': 'ring'}
_FOREST = _ALLREDUCE | _SHORT | {'route.name': 'forest'}
# Servers in workers: all continue from a mirror after a death.
_SERVER = _SHORT | {'sync.name': 'bsp', 'route.server.mirror_s': 2.0}
_SLOW_SERVERS = {'cluster.timeout_s': 10.0, 'cluster.start_s': 30.0}

_BY_SCHEME = {
  'bsp': {'sync.name': 'bsp'},
  'pipelined': {
    'sync.name': 'bsp',
    'route.server.pipelined': True,
    'model.mlp.hidden': '(1024,)',  # Pushed in several pieces.
  },
  'ssp': {'sync.name': 'ssp'},
  'elastic': {'sync.name': 'elastic'},
  'r2sp': {'sync.name': 'r2sp'},
}
# Two workers die in the same iteration.
_TWO = ((1, 40, 'die', 'compute'), (2, 40, 'die', 'compute'))
# Worker 3 dies before the last chunk that it sends: the others have applied a
# sum, but for the one that lacks it.  Worker 1 dies once it has applied one.
_AHEAD = ((3, 40, 'die', 'last'), (1, 60, 'die', 'applied'))
_FEW = ((1, 40, 'die', 'compute'), (2, 90, 'hang', 'first'))
# Faults of processes, on a ring and, where they exist, with servers in workers.
_PROCESSES: dict[str, tuple[Entry, ...]] = {
  'two': _TWO,
  'stop': ((0, 40, 'stop:15', 'compute'),),
  'memory': ((1, 40, 'memory', 'compute'), (0, 90, 'memory', 'compute')),
  'descriptors': (
    (1, 40, 'descriptors:5', 'compute'),
    (0, 90, 'descriptors:5', 'compute'),
    (2, 100, 'die', 'compute'),  # The coordinator has a worker to admit.
  ),
}
_OF_REPLICAS: dict[str, tuple[Entry, ...]] = {
  'joiner': ((1, 40, 'die', 'compute'), (1, 0, 'die', 'fetch')),
  'source': ((1, 40, 'die', 'compute'), (2, 0, 'die', 'serve')),
  # The second rendezvous of these processes follows the death of worker 1.
  'rendezvous': (
    (1, 40, 'die', 'compute'),
    (2, 1, 'die', 'rendezvous'),
    (3, 1, 'die', 'rendezvous'),
  ),
  'ahead': _AHEAD,
}
_DISTURBED: dict[str, tuple[Disturbance, ...]] = {
  'oneway': (Disturbance('drop', 150, 20.0, (1,), (2,)),),
  'halves': (Disturbance('part', 150, 20.0, (0, 1), (2, 3)),),
  'minority': (Disturbance('part', 150, 20.0, (0,), (1, 2, 3)),),
  'lossy': (Disturbance('loss', 100, 30.0, (0, 1, 2, 3)),),
  'slowed': (Disturbance('rate', 100, 20.0, (1,)),),
}
_SAMPLES: dict[str, dict[str, Any]] = {
  'sparse': {'wire.name': 'sparse', 'wire.sparse.chunk': 256},
  'lowrank': {'wire.name': 'lowrank', 'wire.lowrank.rank': 2},
  'half': {'wire.dense.dtype': 'float16'},
}
_DISK = (Disturbance('disk', 150, 5.0),)

RUNS: dict[str, Run] = {
  **{
    name: Run(fields, _entries(), _MANY, servers=1, is_dedicated=True)
    for name, fields in _BY_SCHEME.items()
  },
  'servers': Run(
    {'sync.name': 'elastic', 'route.server.mirror_s': 0.0} | _SLOW_SERVERS,
    _server_entries(),
    _MANY,
    servers=2,
    is_dedicated=True,
  ),
  'ring': Run(_ALLREDUCE | {'route.name': 'ring'}, _entries(), _MANY),
  'forest': Run(_ALLREDUCE | {'route.name': 'forest'}, _entries(), _MANY),
  # The coordinator dies, its successor hangs, the next one is cut off: each
  # time the lowest rank is elected.
  'succession': Run(
    _RING | {'epochs': 35.0},
    (
      (0, 40, 'die', 'compute'),
      (1, 120, 'hang', 'compute'),
      (0, 200, 'cut:5', 'compute'),
    ),
    _MANY,
  ),
  'native': Run(
    _ALLREDUCE | {'route.name': 'native'},
    _native_entries(),
    _MANY,
    all_restart=True,
  ),
  **{
    f'ring-{name}': Run(_RING, entries)
    for name, entries in (_PROCESSES | _OF_REPLICAS).items()
  },
  **{f'server-{name}': Run(_SERVER, each) for name, each in _PROCESSES.items()},
  'forest-probe': Run(_FOREST, ((1, 1, 'die', 'probe'),)),
  # The forests of the start, and of the epoch after a death.
  'forest-pack': Run(
    _FOREST, ((1, 40, 'die', 'compute'), (0, 1, 'die', 'pack'))
  ),
  # A slower link has another forest: a worker dies as all change to it.
  'forest-switch': Run(
    _FOREST | {'route.forest.adapt': True, 'epochs': 40.0},
    ((2, 1, 'die', 'rendezvous'),),
    disturbances=(Disturbance('rate', 100, 40.0, (1,)),),
    longer_s=13.0,
  ),
  **{
    f'ring-{name}': Run(_RING, disturbances=each)
    for name, each in _DISTURBED.items()
  },
  **{
    f'server-{name}': Run(_SERVER, disturbances=each)
    for name, each in _DISTURBED.items()
  },
  'ring-disk': Run(_RING, disturbances=_DISK, disk='64m', longer_s=5.0),
  'server-disk': Run(_SERVER, disturbances=_DISK, disk='64m', longer_s=5.0),
  **{
    f'ring-{name}': Run(_RING | fields, _FEW)
    for name, fields in _SAMPLES.items()
  },
  'ring-tls': Run(_RING, _FEW, is_encrypted=True),
  'server-tls': Run(_SERVER, _FEW, is_encrypted=True),
}
