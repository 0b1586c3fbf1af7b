"""A Ray cluster of several nodes on one machine, for tests.

Tests run without Ray: another interpreter, which has it, runs the cluster and
what is started in it.
"""

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
# By default Ray gives its workers a low priority.
_ENVIRON = {'RAY_USAGE_STATS_ENABLED': '0', 'RAY_worker_niceness': '0'}
# Reads lines: 'remove K' kills node K, and 'add CPUS' adds one.
_PROGRAM = """
import sys
from ray.cluster_utils import Cluster
memory = dict(object_store_memory=80 * 2**20)
cpus = [int(word) for word in sys.argv[1:]]
own = dict(num_cpus=cpus[0], num_gpus=0, include_dashboard=False, **memory)
cluster = Cluster(initialize_head=True, head_node_args=own)
nodes = [cluster.head_node]
for count in cpus[1:]:
  nodes.append(cluster.add_node(num_cpus=count, num_gpus=0, **memory))
print(cluster.address, flush=True)
for line in sys.stdin:
  word, number = line.split()
  if word == 'remove':
    cluster.remove_node(nodes[int(number)], allow_graceful=False)
  else:
    nodes.append(cluster.add_node(num_cpus=int(number), num_gpus=0, **memory))
  print('done', flush=True)
cluster.shutdown()
"""


class Nodes:
  """A running cluster.

  Attributes:
    python: Interpreter that has Ray.
    environ: Environment with which programs find the cluster.
  """

  def __init__(self, python: str, process: subprocess.Popen):
    self.python, self._process = python, process
    address = process.stdout.readline().strip()
    if not address:
      raise AssertionError('The Ray cluster has not started.')
    self.environ = os.environ | {
      'RAY_ADDRESS': address,
      'RAY_USAGE_STATS_ENABLED': '0',
      'JAX_PLATFORMS': 'cpu',
    }

  def change(self, word: str, number: int) -> None:
    """Removes node `number`, or adds one with so many CPUs."""
    self._process.stdin.write(f'{word} {number}\n')
    self._process.stdin.flush()
    self._process.stdout.readline()

  def start(self, *words: str) -> subprocess.Popen:
    """Starts a Python program of the repository."""
    return subprocess.Popen(
      [self.python, *words],
      cwd=ROOT,
      env=self.environ,
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
    )


@contextlib.contextmanager
def cluster(python: str, *cpus: int) -> Iterator[Nodes]:
  """Starts a cluster with nodes of so many CPUs, the head first."""
  process = subprocess.Popen(
    [python, '-c', _PROGRAM, *map(str, cpus)],
    cwd=ROOT,
    env=os.environ | _ENVIRON,
    text=True,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
  )
  try:
    yield Nodes(python, process)
  finally:
    process.stdin.close()
    process.stdout.close()
    process.wait(60)
