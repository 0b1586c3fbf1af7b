"""Tests for bench.lab.torch_rank, which need an interpreter that has torch.

SYNCOPATE_PEERS is the path of one, such as that of `make peers`.
"""

import json
import math
import pathlib
import tempfile

from absl.testing import absltest

from bench.lab import running
from cluster.process import roles
from launch import processes
from launch.processes import Command
from tests.bench.lab.tables_test import count_torch_parameters
from tests.support import requires

_PROGRAM = pathlib.Path(running.__file__).with_name('torch_rank.py')
_STEP = {
  'kind': 'step',
  'steps': 3,
  'batch': 4,
  'bucket_bytes': None,
  'hook': 'none',
  'rank': 1,
}


class TorchTest(absltest.TestCase):
  def test_ranks_measure_sums_and_steps(self):
    python = requires.peers()
    layers = [(40_000, 0.5), (400_000, 1.0)]
    sleeping = {'name': 'sleeping', 'layers': layers, 'seconds': 0.05}
    net = {'name': 'mlp', 'hidden': [8]}
    small = {'name': 'vgg', 'blocks': [[2], [2]], 'hidden': 4}
    one = {'bucket_bytes': math.inf}
    task = {
      'ranks': 2,
      'threads': 1,
      'address': '127.0.0.1',
      'port': roles.free_ports(1)[0],
      'interface': 'lo',
      'jobs': [
        {'kind': 'sum', 'bytes': 4000, 'rounds': 3},
        _STEP | {'model': sleeping, 'bucket_bytes': 0.0},
        _STEP | {'model': sleeping, 'hook': 'bfloat16', **one},
        _STEP | {'model': small, 'hook': 'float16'},
        _STEP | {'model': net, 'hook': 'powersgd', **one},
      ],
    }
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / 'task.json').write_text(json.dumps(task))
    words = [python, '-P', str(_PROGRAM), str(folder)]
    commands = [Command(f'rank{n}', [*words, str(n)]) for n in range(2)]
    with processes.start(commands, folder) as group:
      group.finish(60.0)
    results = json.loads((folder / '1.json').read_text())

    total, tensors, fused, convs, factors = results
    self.assertLen(total['rounds'], 3)
    for each in (tensors, fused):
      self.assertEqual(each['parameters'], 110_000)
      self.assertBetween(each['compute_s'], 0.05, 0.2)
      self.assertGreaterEqual(min(each['steps_s']), 0.05)
    self.assertEqual(
      convs['parameters'], count_torch_parameters(small | {'pixels': 8})
    )
    self.assertEqual(factors['parameters'], count_torch_parameters(net))


if __name__ == '__main__':
  absltest.main()
