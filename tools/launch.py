"""Starts one or all processes of a distributed run on this machine.

  python -m tools.launch --workers=4 [--servers=1] [--dedicated] [--workdir=DIR]
    [--restarts=3] -- --config=configs/vgg16_elastic.py [flags of main.py]
  python -m tools.launch --on=ray --workers=4 -- [flags of main.py]
  python -m tools.launch --workers=4 --module=tools.probe -- [its flags]
  python -m tools.launch --rank --workers=4 --servers=1 --workdir=DIR
    [--role=worker:2] [--coordinator=HOST:PORT] -- [flags of main.py]

The output of each process is shown line by line, after its name.  Only the
coordinator draws progress: server 0 if servers are dedicated, else worker 0.
--module names a module to run instead of main.py.  In a lab (tools/lab.py)
dedicated servers run on the first hosts and workers on the next ones, in a
circle.  Each worker gets its own GPUs, or --workers_per_gpu of them share one.
With --hosts_per_worker=P each worker is an island of P processes: worker 2 is
the leader of its island, worker 2.1 its first follower.

The end of a process has these consequences:

  coordinator, code 0        The run has finished; the others have 10 s to end.
  another one, code 0        None.
  another one, code 143      None: the coordinator has stopped it.  In an
                             allreduce of hosts a restart: the coordinator may
                             have failed.
  another one, code 79       None: it has left after SIGTERM, and the others
                             continue; it is not restarted.
  75, or killed by a signal  A restart:
    a worker                   of this worker, without limit, but 5 ends in a
                               row within 5 s of its start end the run;
    a process with a shard     of all processes, from a checkpoint, at most
                               --restarts times.
    the coordinator of an      of this worker: another one has taken over,
    allreduce of hosts         or (75) all return to a checkpoint, at most
                               --restarts times.
  any other code             All processes end; the launcher has the same code.

All processes of an island end with any of them.  The end of a follower has no
consequence of its own, unless its code means that all processes end: the leader
ends, too, and has 10 s for it, and the end of the leader is that of the worker.
A restart of a worker is one of its whole island.

SIGINT, SIGTERM and SIGHUP are passed to the coordinator as SIGTERM: it saves a
checkpoint, and all processes end after at most --grace_s.  A second signal
kills all.  A closed pipe at standard output counts as a signal, SIGPIPE.

launch.jsonl in the folder of the run has a row for each start and end: time
(Unix), role, pid, event ('start', 'exit'), code (negative: a signal; or null).

With --rank the launcher supervises one process: that of --role, or of the
environment as main.py reads it.  Other hosts launch the others, which rejoin or
are restarted after the coordinator has ended.  The end of the process has these
consequences:

  code 0                     The run has finished for this process.
  killed by a signal,        A restart, without limit, but 5 ends in a row
  without a shard            within 5 s of its start end the launcher.
  killed, with a shard; 75;  A restart, at most --restarts times: each restart
  143, not the coordinator   of the run restarts this process at most once.
  any other code             The launcher ends with this code; the program that
                             has started it ends the others.

Only restarts in a row count: a checkpoint that is written between two of them
shows progress, and starts the count again.

After a signal no process is restarted.  The coordinator gets the signal, and so
does a worker without a shard, which leaves if the coordinator continues.  All
end after at most --grace_s, and return 128 + the number of the signal.
A scheduler and a script may send the same signal twice: a second one counts if
it arrives more than a second later.  Rows are in launch-worker-2.jsonl.

With --on=ray all processes run on the nodes of a Ray cluster, each with
--cpus_per_process and its GPUs, and the first table holds for them.  A process
that is lost with its node counts as killed, and is restarted on a node that has
room for it.
"""

import datetime
import os
import pathlib
import sys
from collections.abc import Mapping

from absl import app, flags

from cluster.process import roles
from configs import paths
from configs.checks import require
from launch.launcher import launch
from launch.plan import Plan
from launch.ray_processes import Request
from outputs import transient

_MAIN = pathlib.Path(__file__).resolve().parents[1] / 'main.py'


def main(argv: list[str]) -> None:
  """Launches the processes that the flags describe."""
  values = flags.FLAGS
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')
  try:
    process = {
      flag: str(values[flag].value)
      for flag in ('role', 'coordinator')
      if values[flag].value
    }
    only = _only(values, process)
    plan = Plan(
      workers=values.workers,
      servers=values.servers,
      dedicated=values.dedicated,
      workdir=pathlib.Path(values.workdir or f'runs/{now}-{os.getpid()}'),
      arguments=tuple(argv[1:]),
      restarts=values.restarts,
      grace_s=values.grace_s,
      devices_per_worker=values.devices_per_worker,
      workers_per_gpu=values.workers_per_gpu,
      hosts_per_worker=values.hosts_per_worker,
      only=only,
      role_flags=tuple(f'--{flag}={value}' for flag, value in process.items()),
    )
    program = ['-m', values.module] if values.module else [str(_MAIN)]
    request = Request(cpus=values.cpus_per_process, wait_s=values.wait_s)
    code = launch(
      plan,
      [sys.executable, *program],
      on_ray=request if values.on == 'ray' else None,
    )
  except (OSError, ValueError) as error:
    transient.leave(error)
  sys.exit(code)


def _only(values: flags.FlagValues, process: Mapping[str, str]) -> str:
  """Returns the name of the process to launch with --rank, or ''."""
  if not values.rank:
    require(
      not process, '--role and --coordinator', 'nothing without --rank', process
    )
    return ''
  shared = 'with --rank the folder that all processes share'
  require(values.workdir is not None, '--workdir', shared, None)
  servers = values.servers if values.dedicated else 0
  role = roles.find(
    os.environ,
    workers=values.workers,
    dedicated=servers,
    role=process.get('role', ''),
    coordinator=process.get('coordinator', ''),
    hosts=values.hosts_per_worker,
  )
  return role.name


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer('workers', 4, 'Number of processes that train.')
  flags.DEFINE_integer(
    'servers',
    0,
    'Number of shards of the parameters; 0: the run chooses it, at most one '
    'shard in each worker.',
  )
  flags.DEFINE_bool('dedicated', False, 'Servers are processes of their own.')
  paths.define_path(
    'workdir', 'Folder of the run; by default a new one in runs/.'
  )
  flags.DEFINE_integer(
    'restarts',
    3,
    'Largest number of restarts of all processes without a new checkpoint '
    'between them.',
  )
  flags.DEFINE_float(
    'grace_s',
    30.0,
    'Seconds that processes have to end after a signal, and the coordinator '
    'to save a checkpoint.',
  )
  flags.DEFINE_integer(
    'devices_per_worker',
    1,
    'Number of GPUs of each worker; of CPU devices on a host without GPUs.',
  )
  flags.DEFINE_integer(
    'workers_per_gpu',
    1,
    'Number of workers that share each GPU and its memory.',
  )
  flags.DEFINE_integer(
    'hosts_per_worker',
    1,
    'Number of processes of each worker; several are an island.',
  )
  flags.DEFINE_enum(
    'on', 'host', ['host', 'ray'], 'Where: on this host, or in a Ray cluster.'
  )
  flags.DEFINE_float(
    'cpus_per_process', 1.0, 'With --on=ray: number of CPUs of each process.'
  )
  flags.DEFINE_float(
    'wait_s', 300.0, 'With --on=ray: seconds to wait for free resources.'
  )
  flags.DEFINE_bool('rank', False, 'Launch one process, that of this host.')
  flags.DEFINE_string(
    'role',
    '',
    'With --rank: worker:2, server:0, or worker:2.1 of an island; by default '
    'as the environment says.',
  )
  flags.DEFINE_string(
    'coordinator',
    '',
    'With --rank: HOST:PORT where the coordinator listens; by default as the '
    'environment or the folder of the run says.',
  )
  flags.DEFINE_string(
    'module',
    None,
    'Module to run, such as tools.probe; main.py by default.',
  )
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
