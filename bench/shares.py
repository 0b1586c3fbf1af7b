"""Measures how TCP transfers that start together share a link of a lab.

  python -m bench.shares [--mbit=100] [--transfers=1,8] [--sizes=125,250]
    [--rounds=10]

Needs root, for network namespaces (tools.lab), and takes some seconds.  Hosts
keep a connection to host0 each; after a pause some of them send it as many
kilobytes at once.  Prints, by number of transfers and size, the mean end of
each transfer over the last one, sorted: all are 1 if shares are equal; and by
how many kilobytes the last end is ahead of the nominal rate without the share
of frame headers, in the median: the bytes that shapers let pass at once.  These
are `share_sigma` and `burst_bytes` of config.cluster.network.
"""

import argparse
import socket
import subprocess
import sys
import threading
import time

import numpy as np

from bench.routes import USABLE
from tools import lab

_PORT = 5555
_PAUSE_S = 0.05
_CHUNK = bytes(2**16)


def main(argv: list[str] | None = None) -> None:
  """Starts a lab and measures in it, or is one of its processes."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--mbit', type=int, default=100)
  parser.add_argument('--transfers', default='1,8')
  parser.add_argument('--sizes', default='125,250', help='kB')
  parser.add_argument('--rounds', type=int, default=10)
  parser.add_argument('--as', dest='role', default='', help=argparse.SUPPRESS)
  flags = parser.parse_args(argv)
  counts = [int(each) for each in flags.transfers.split(',')]
  if flags.role == 'sender':
    _send()
  elif flags.role == 'receiver':
    _measure(flags, counts)
  else:
    module = [sys.executable, '-m', 'bench.shares']
    words = argv if argv is not None else sys.argv[1:]
    hosts = [f'--hosts={1 + max(counts)}', f'--link={flags.mbit}mbit']
    command = [sys.executable, '-m', 'tools.lab', *hosts, '--', *module, *words]
    subprocess.run([*command, '--as=receiver'], check=True)


def _measure(flags: argparse.Namespace, counts: list[int]) -> None:
  """Receives from the other hosts and prints the table, on host0."""
  listener = socket.create_server(('', _PORT))
  module = [sys.executable, '-m', 'bench.shares', '--as=sender']
  senders = [
    subprocess.Popen(lab.command(f'host{n}', module))
    for n in range(1, 1 + max(counts))
  ]
  connections = [listener.accept()[0] for _ in senders]
  print('| transfers | kB | kB early | ends over the last |')
  print('| --- | --- | --- | --- |')
  for count in counts:
    for size in map(float, flags.sizes.split(',')):
      rounds = [
        _receive(connections[:count], round(1000 * size))
        for _ in range(flags.rounds)
      ]
      ends_s = np.sort(rounds[1:], axis=1)  # Windows grow in the first one.
      shares = (ends_s / ends_s[:, -1:]).mean(axis=0)
      nominal_Bps = flags.mbit * 1e6 / 8 * float(USABLE)
      early = count * size - np.median(ends_s[:, -1]) * nominal_Bps / 1000
      numbers = ' '.join(f'{share:.2f}' for share in shares)
      print(f'| {count} | {size:g} | {early:.0f} | {numbers} |', flush=True)
  for connection in connections:
    connection.close()
  for sender in senders:
    sender.wait()


def _receive(connections: list[socket.socket], size: int) -> list[float]:
  """Returns the seconds until each connection has sent `size` bytes."""
  ends: dict[socket.socket, float] = {}

  def receive(connection: socket.socket) -> None:
    connection.sendall(size.to_bytes(8, 'big'))
    left = size
    while left:
      chunk = connection.recv(min(left, 2**18))
      if not chunk:
        raise ConnectionError('A sender has closed its connection.')
      left -= len(chunk)
    ends[connection] = time.monotonic()

  threads = [
    threading.Thread(target=receive, args=[each]) for each in connections
  ]
  start = time.monotonic()
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  time.sleep(_PAUSE_S)
  return [ends[each] - start for each in connections]


def _send() -> None:
  """Sends as many bytes as host0 asks for, until it closes the connection."""
  with socket.create_connection(('host0', _PORT)) as connection:
    while request := connection.recv(8, socket.MSG_WAITALL):
      left = int.from_bytes(request, 'big')
      while left:
        sent = connection.send(_CHUNK[: min(left, len(_CHUNK))])
        left -= sent


if __name__ == '__main__':
  main()
