"""Tests for bench.peers; some need an interpreter that has torch.

SYNCOPATE_PEERS is the path of one, such as that of `make peers`.
"""

import contextlib
import functools
import io
import itertools
import json
import math
import pathlib
import socket
import stat
import subprocess
import tempfile
from unittest import mock

import jax
from absl.testing import absltest, parameterized
from flax import nnx

from bench import allreduce, hosts, ladder, routes, steps
from bench.peers import running
from cluster.speed.layers import Layer
from models import mlp, vgg
from tests.support import requires

_PROGRAM = pathlib.Path(running.__file__).with_name('ddp.py')
_IMAGE = {'input_shape': (32, 32, 3), 'num_classes': 10, 'seed': 0}


def _parameters(net) -> int:
  leaves = jax.tree.leaves(nnx.eval_shape(net))
  return sum(math.prod(leaf.shape) for leaf in leaves)


def _count_torch_parameters(model) -> int:
  """Returns the number of parameters of a model of ddp.py."""
  count, features = 0, 3
  for block in model.get('blocks', ()):
    for out in block:
      count += 9 * features * out + out
      features = out
  hidden = model['hidden']
  if model['name'] == 'vgg':
    features *= model.get('pixels', 1) ** 2
    widths = [features, hidden, hidden, 10]
  else:
    widths = [3072, *hidden, 10]
  pairs = itertools.pairwise(widths)
  return count + sum(a * b + b for a, b in pairs)


def _free_port() -> int:
  with socket.socket() as server:
    server.bind(('127.0.0.1', 0))
    return server.getsockname()[1]


class RunningTest(parameterized.TestCase):
  @parameterized.parameters(allreduce, routes, steps, ladder)
  def test_an_interpreter_without_torch_is_refused(self, bench):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    python = pathlib.Path(folder, 'python')
    python.write_text('#!/bin/sh\necho No module named torch >&2; exit 1\n')
    python.chmod(stat.S_IRWXU)
    for path, reason in (
      (python, 'No module named torch'),
      ('/no/x', 'No such'),
    ):
      with (
        contextlib.redirect_stderr(io.StringIO()) as printed,
        self.assertRaises(SystemExit),
      ):
        bench.main([f'--peers={path}'])
      expected = rf'(?s)--peers: expected an interpreter.*{path}.*{reason}'
      self.assertRegex(printed.getvalue(), expected)

  def test_without_an_interpreter_a_line_explains_how_to_install_torch(self):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      running.require_torch(mock.Mock(), None)
    self.assertRegex(
      printed.getvalue(), 'DDP of torch is not measured.*make peers'
    )

  @parameterized.parameters(*steps.MODELS)
  def test_models_of_torch_have_as_many_parameters_as_ours(self, name):
    fields = steps.MODELS[name]
    if name == 'mlp':
      hidden = fields['model.mlp.hidden']
      net = functools.partial(mlp.make, hidden=hidden, **_IMAGE)
    else:
      width = fields['model.vgg.width']
      sizes = {'depth': 16, 'width': width, 'dropout': 0.0}
      net = functools.partial(vgg.make, **sizes, **_IMAGE)
    self.assertEqual(
      _count_torch_parameters(steps.torch_model(name)), _parameters(net)
    )

  def test_results_combine_the_times_of_all_ranks(self):
    costs = {'cpu_s': 0.5, 'sent_bytes': 1000.0}
    step = {'steps_s': [3.0, 1.0, 2.0], 'parameters': 7, **costs}
    ranks = [
      [{'rounds': rounds, **costs}, step | {'compute_s': compute_s}]
      for rounds, compute_s in (
        ([(0.0, 3.0), (4.0, 5.0)], 1.0),
        ([(1.0, 2.0), (5.0, 9.0)], 0.5),
      )
    ]
    tasks = []

    def start(words, log):
      folder = pathlib.Path(words[-1])
      self.assertEqual(words[-2], 'torch')
      tasks.append(json.loads((folder / 'task.json').read_text()))
      for rank, results in enumerate(ranks):
        (folder / f'{rank}.json').write_text(json.dumps(results))

    case = hosts.Case([200, 200], [200, 200], {})
    model = running.sleeping_model([Layer(8, 0.5), Layer(4, 1.0)], 0.1)
    jobs = [running.sum_job(8, 2), running.step_job(model, steps=3)]
    with (
      mock.patch.object(running.clusters, 'start', start),
      mock.patch.object(running.clusters, 'finish', autospec=True),
    ):
      total, took = running.run('torch', case, jobs)

    self.assertEqual(total, running.Sum(4.0, 1.0, 2000.0))
    self.assertEqual(took, running.Step(2.0, 1.0, 1.0, 2000.0, 7))
    self.assertEqual(tasks[0]['ranks'], 2)
    layers = tasks[0]['jobs'][1]['model']['layers']
    self.assertEqual(layers, [[8, 0.5], [4, 1.0]])


class TorchTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self._python = requires.peers()

  def test_ranks_measure_sums_and_steps(self):
    model = running.sleeping_model(
      [Layer(40_000, 0.5), Layer(400_000, 1.0)], 0.05
    )
    net = {'name': 'mlp', 'hidden': [8]}
    small = {'name': 'vgg', 'blocks': [[2], [2]], 'hidden': 4}
    task = {
      'ranks': 2,
      'threads': 1,
      'environ': {
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(_free_port()),
        'GLOO_SOCKET_IFNAME': 'lo',
      },
      'jobs': [
        running.sum_job(4000, 3),
        running.step_job(model, steps=3, bucket_bytes=0.0),
        running.step_job(
          model, steps=3, bucket_bytes=math.inf, hook='bfloat16'
        ),
        running.step_job(small, steps=3, hook='float16', batch=4),
        running.step_job(
          net, steps=3, hook='powersgd', batch=4, bucket_bytes=math.inf
        ),
      ],
    }
    with tempfile.TemporaryDirectory() as folder:
      pathlib.Path(folder, 'task.json').write_text(json.dumps(task))
      ranks = [
        subprocess.Popen([self._python, '-P', str(_PROGRAM), folder, str(rank)])
        for rank in range(2)
      ]
      try:
        codes = [each.wait(60) for each in ranks]
      finally:
        for each in ranks:
          each.kill()
      self.assertEqual(codes, [0, 0])
      results = json.loads(pathlib.Path(folder, '1.json').read_text())

    total, tensors, one, convs, factors = results
    self.assertLen(total['rounds'], 3)
    for each in (tensors, one):
      self.assertEqual(each['parameters'], 110_000)
      self.assertBetween(each['compute_s'], 0.05, 0.2)
      self.assertGreaterEqual(min(each['steps_s']), 0.05)
    self.assertEqual(
      convs['parameters'], _count_torch_parameters(small | {'pixels': 8})
    )
    self.assertEqual(factors['parameters'], _count_torch_parameters(net))


if __name__ == '__main__':
  absltest.main()
