"""Measures iterations of local steps in a lab, beside torchft's DiLoCo and DDP.

  python -m bench.local_steps [--steps=1,8,32] [--rates=50,200] [--routes=
    server,ring] [--fragments=1] [--megabytes=5] [--step_s=0.02]
    [--iterations=10] [--out=DIR] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Four equal hosts train without
a model: an iteration of H local steps takes H times --step_s of injected
computing, and then a displacement of --megabytes is summed, by a server in each
worker or by a ring.  Seconds of an iteration are medians without the first two.

over virtual: time of an iteration over that under the virtual clock, whose
links have the rates that frame headers leave.  over bound: over H times
--step_s and the time in which each host sends 2 (n - 1) / n of the bytes at the
nominal rate, which frame headers alone exceed by 4.5 %.

With F fragments (--fragments) an iteration is F shorter ones, of H / F steps
each, during all of which a fragment of 1 / F of the bytes is summed.  The bound
is then the longer of both times.  exposed: time of an iteration without its
steps, over the time of the bytes at the nominal rate.

diloco: rounds of torchft's DiLoCo over gloo with the same bytes and H, each
host a replica group; ddp: steps of torch's DDP that accumulate H gradients,
with its own overlap in the last one.  Both need --peers (bench.peers).  Ratios
to them are ours over theirs.
"""

import argparse
import itertools
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from bench import clusters, hosts, routes
from bench.peers import running as peers
from cluster.speed import layers
from configs import default

_CASE, _HOSTS = 'equal4', 4
_ROUTES = ('server', 'ring')


def main(argv: list[str] | None = None) -> None:
  """Prints a table per rate."""
  parser = argparse.ArgumentParser(
    prog='bench.local_steps', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--steps', default='1,8,32', help='H')
  parser.add_argument('--rates', default='50,200', help='Mbit/s')
  parser.add_argument('--routes', default=','.join(_ROUTES))
  parser.add_argument('--fragments', default='1', help='F, of the ring')
  parser.add_argument('--megabytes', type=float, default=5.0)
  parser.add_argument('--step_s', type=float, default=0.02)
  parser.add_argument('--iterations', type=int, default=10)
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--peers', **peers.FLAG)
  flags = parser.parse_args(argv)
  chosen = flags.routes.split(',')
  if {*chosen} - {*_ROUTES}:
    parser.error(f'expected routes of {[*_ROUTES]}, got {chosen}')
  peers.require_torch(parser, flags.peers)
  out = pathlib.Path(flags.out or tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  for mbit in map(int, flags.rates.split(',')):
    print_rate(out, mbit, [*map(int, flags.steps.split(','))], chosen, flags)


def print_rate(
  out: pathlib.Path,
  mbit: int,
  local_steps: Sequence[int],
  chosen: Sequence[str],
  flags: argparse.Namespace,
) -> None:
  """Prints the times of iterations on links of one rate.

  Args:
    out: Folder of all runs.
    mbit: Rate of all links, Mbit/s.
    local_steps: Numbers of local steps (H).
    chosen: Names of the routes.
    flags: Parsed flags of the command line.
  """
  size_bytes = round(flags.megabytes * 1e6) // 4 * 4
  others = _measure_peers(mbit, size_bytes, local_steps, flags)
  head = ('H', 'route', 'F', 's', 'exposed', 'virtual s', 'over virtual')
  head = (*head, 'bound s', 'over bound')
  rows = [(*head, 'diloco s', 'over', 'ddp s', 'over')]
  for count in local_steps:
    for route, parts in itertools.product(
      chosen, map(int, flags.fragments.split(','))
    ):
      if parts > 1 and route == 'server':
        continue
      setting: dict[str, Any] = {
        'local_steps': count,
        'step_s': flags.step_s,
        'size_bytes': size_bytes,
        'workers': _HOSTS,
        'mbit': mbit,
      }
      limit_s = bound_s(**setting, overlaps=parts > 1)
      transfer_s = bound_s(**setting | {'step_s': 0.0})
      run = routes.Run(_CASE, size_bytes, 'alone', route, mbit, count, parts)
      compute_s = count * flags.step_s
      virtual_s = parts * (routes.simulate(run, compute_s / parts) or 0.0)
      took_s = parts * routes.measure(
        out, run, compute_s / parts, parts * flags.iterations
      )
      exposed = (took_s - compute_s) / transfer_s
      cells = [f'{count}', route, f'{parts}', f'{took_s:.4f}', f'{exposed:.3f}']
      for reference_s in (virtual_s, limit_s, *others.get(count, ())):
        cells += [f'{reference_s:.4f}', f'{took_s / reference_s:.3f}']
      cells += ['-'] * (len(rows[0]) - len(cells))
      rows.append(tuple(cells))
  print(
    f'\n{_HOSTS} hosts, {mbit} Mbit/s, {size_bytes / 1e6:g} MB, a local step '
    f'of {flags.step_s:g} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )


def bound_s(
  *,
  local_steps: int,
  step_s: float,
  size_bytes: int,
  workers: int,
  mbit: int,
  overlaps: bool = False,
) -> float:
  """Returns the seconds of computing and of an optimal sum.

  In an optimal sum on equal links each host sends 2 (n - 1) / n of the bytes.

  Args:
    local_steps: Local steps of an iteration (H).
    step_s: Seconds of a local step.
    size_bytes: Bytes of the displacement.
    workers: Number of hosts (n).
    mbit: Nominal rate of each host in each direction, Mbit/s.
    overlaps: Whether both go on at the same time; else one after the other.
  """
  sent_bytes = 2 * (workers - 1) / workers * size_bytes
  times_s = local_steps * step_s, 8e-6 * sent_bytes / mbit
  return max(times_s) if overlaps else sum(times_s)


def _measure_peers(
  mbit: int,
  size_bytes: int,
  local_steps: Sequence[int],
  flags: argparse.Namespace,
) -> dict[int, tuple[float, float]]:
  """Returns the seconds of a round of DiLoCo and a step of DDP, by H."""
  if not flags.peers:
    return {}
  bucket_bytes = default.get_config().route.bucket_bytes
  parts = layers.in_proportion(layers.equal_sizes(size_bytes, bucket_bytes))
  rounds, jobs = flags.iterations - 2, []
  for count in local_steps:
    jobs.append(
      peers.diloco_job(
        parts, step_s=flags.step_s, local_steps=count, rounds=rounds
      )
    )
    # Gradients of the last of `count` steps are ready late.
    late = [
      each._replace(ready=(count - 1 + each.ready) / count) for each in parts
    ]
    model = peers.sleeping_model(late, count * flags.step_s)
    jobs.append(peers.step_job(model, steps=rounds))
  lab_hosts = hosts.scaled_cases(mbit)[_CASE]
  took = [each.step_s for each in peers.run(flags.peers, lab_hosts, jobs)]
  pairs = zip(took[::2], took[1::2], strict=True)
  return dict(zip(local_steps, pairs, strict=True))


if __name__ == '__main__':
  main()
