"""Measures the transfer of a replica's state from one and from two sources.

  python -m bench.handover [--mb=256] [--rounds=5] [--sources=1,2] [--mbit=0]

Each source is a process of its own with the same state, and this process
fetches it, places its arrays and verifies the digest.  With `--mbit`, all
are hosts of a lab (root only) with links of that rate, and the last column is
the share of the receiver's link that the state's bytes take.
"""

import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from analysis import printing
from bench import flag_lists
from cluster.membership import handover
from cluster.network.port import Port
from cluster.network.streams import Security
from configs import paths
from launch import lab, processes
from launch.processes import Command
from learning.digest import digest

_ARRAYS, _LIMIT_S, _TIMEOUT_S = 64, 600.0, 30.0


def main(argv: list[str]) -> None:
  """Measures and prints the table."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  if values.serve:
    _serve(values.serve, values.mb, values.at)
    return
  if values.mbit and not values.hosts:
    hosts = max(values.sources) + 1
    words = [sys.executable, '-m', 'tools.lab', f'--hosts={hosts}']
    words += [f'--link={values.mbit}mbit', '--', sys.executable, '-m']
    words += ['bench.handover', '--hosts', *sys.argv[1:]]
    subprocess.run(words, check=True, timeout=_LIMIT_S)
    return
  rows = [('sources', 'MB', 's', 'GB/s', 'CPU s/GB here', 'share of the link')]
  size_GB, mbit = values.mb / 1e3, values.mbit
  for count in values.sources:
    took_s, cpu_s = _measure(count, values.rounds, values.mb, mbit)
    share = f'{8e3 * size_GB / took_s / mbit:.3f}' if mbit else ''
    cells = f'{took_s:.3f}', f'{size_GB / took_s:.2f}', f'{cpu_s / size_GB:.2f}'
    rows.append((str(count), str(values.mb), *cells, share))
  print(printing.markdown(rows), flush=True)


def _measure(
  count: int, rounds: int, mb: int, mbit: int
) -> tuple[float, float]:
  """Returns the median time of a transfer, and of this process's CPU."""
  took_s, cpu_s = [], []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    commands = [_source(rank, folder, mb, mbit) for rank in range(count)]
    with processes.start(commands, folder):
      sources = [(rank, _await(folder / f'{rank}')) for rank in range(count)]
      for _ in range(rounds):
        start, cpu = time.perf_counter(), time.process_time()
        state, expected = handover.fetch(sources, 0, Security(), _TIMEOUT_S)
        jax.block_until_ready(state)
        if digest(state) != expected:
          raise RuntimeError('The state has another digest.')
        took_s.append(time.perf_counter() - start)
        cpu_s.append(time.process_time() - cpu)
        del state
  return statistics.median(took_s), statistics.median(cpu_s)


def _source(rank: int, folder: pathlib.Path, mb: int, mbit: int) -> Command:
  """Returns the process of a source, on its host if there is a lab."""
  words = [sys.executable, '-m', 'bench.handover', f'--mb={mb}']
  words.append(f'--serve={folder / str(rank)}')
  if mbit:
    host = f'host{rank + 1}'
    words = lab.command(host, [*words, f'--at={host}'])
  return Command(f'source{rank}', words)


def _await(path: pathlib.Path) -> str:
  """Returns the address that a source has written."""
  deadline = time.monotonic() + _LIMIT_S
  while not path.exists():
    if time.monotonic() > deadline:
      raise TimeoutError('A source has not started.')
    time.sleep(0.05)
  address: str = json.loads(path.read_text())
  return address


def _serve(path: str, mb: int, host: str) -> None:
  """Serves a state of some arrays until the process is terminated."""
  state: Any = {
    name: jnp.full((mb * 10**6 // 4 // _ARRAYS,), k, jnp.float32)
    for k, name in enumerate(f'w{k:02}' for k in range(_ARRAYS))
  }
  found = digest(state)
  source = handover.Handover(
    Port(socket.gethostbyname(host), 0, Security()),
    lambda _: (state, found),
    _TIMEOUT_S,
  )
  new = pathlib.Path(f'{path}.new')
  new.write_text(json.dumps(source.address))
  new.rename(path)
  while True:
    time.sleep(1.0)


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer('mb', 256, 'Size of the state, MB.', lower_bound=1)
  flags.DEFINE_integer(
    'rounds', 5, 'Measured transfers of a row.', lower_bound=1
  )
  flag_lists.define_integers(
    'sources', (1, 2), 'Numbers of sources, a row of each.'
  )
  flags.DEFINE_integer(
    'mbit', 0, 'Rate of the links, Mbit/s; 0 for loopback.', lower_bound=0
  )
  paths.define_path('serve', 'For itself: file for the address of a source.')
  flags.DEFINE_string('at', 'localhost', 'For itself: host of a source.')
  flags.DEFINE_bool('hosts', False, 'For itself: it runs in the lab.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
