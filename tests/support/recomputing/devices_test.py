"""Tests for recompute: where runs are computed again, and where not.

Runs and their recomputation are in processes of their own, which have several
devices, or a CPU client in the place of an accelerator.
"""

import functools
import json
import logging
import pathlib
import sys
import tempfile

from absl.testing import absltest, parameterized

from tests.support import accelerators, small, together
from tests.support.recomputing import recompute

_ROUTES = {
  'server': {'route__server__servers': 2},
  'pipelined': {
    'route__server__servers': 1,
    'route__server__pipelined': True,
  },
  'forest': {
    'route__name': 'forest',
    'route__forest__cluster': 'full_mesh(2, 1)',
  },
}


def _run(route, **more):
  """Returns the folder of a run of two workers, all in this process."""
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  devices = more.pop('devices', ())
  config = small.config(
    cluster__runtime='distributed',
    cluster__workers=2,
    cluster__speed__slowdown=(1.0,),
    checkpoint__every_examples=96,
    model__mlp__hidden=(64,),
    data__synthetic__pixels=8,
    epochs=1.0,
    **_ROUTES[route],
    **more,
  )
  together.run(config, folder, devices=devices)
  return folder


def _warnings(call):
  """Returns the warnings of a call, and its result."""
  lines: list[str] = []
  handler = logging.Handler(logging.WARNING)
  handler.emit = lambda record: lines.append(record.getMessage())
  logger = logging.getLogger('absl')
  logger.addHandler(handler)
  try:
    return call(), lines
  finally:
    logger.removeHandler(handler)


def _of_two_devices():
  """Yields the results of a process with two devices, by name."""
  for route in ('server', 'forest'):
    folder = _run(route, cluster__devices_per_worker=2)
    manifest = json.loads((folder / 'manifest.json').read_text())
    yield route, [recompute.difference(folder), manifest['starts'], f'{folder}']
  folder, warned = _warnings(lambda: _run('forest', devices=(1, 2)))
  starts = json.loads((folder / 'manifest.json').read_text())['starts']
  yield 'unlike', [warned, starts, f'{folder}']


def _of_an_accelerator(route):
  """Yields how a run on an accelerator differs from the same again."""
  yield route, recompute.difference(_run(route))


@functools.cache
def _call_in_process(*words, **environment):
  """Returns the results of a function of this module in a new process."""
  done = small.python(
    *('-m', 'tests.support.recomputing.devices_test', *words),
    **{'JAX_PLATFORMS': 'cpu'} | environment,
  )
  if done.returncode:
    raise RuntimeError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


class SeveralDevicesTest(parameterized.TestCase):
  @parameterized.parameters('server', 'forest')
  def test_runs_of_several_devices_are_the_same_to_the_last_bit(self, route):
    difference, starts, _ = _call_in_process(
      '_of_two_devices', JAX_NUM_CPU_DEVICES='2'
    )[route]
    two = ['cpu', 'cpu']
    self.assertEqual([s['workers'] for s in starts], [{'0': two, '1': two}])
    self.assertEqual(difference, 0.0)

  def test_a_process_with_fewer_devices_names_the_required_ones(self):
    *_, folder = _call_in_process('_of_two_devices', JAX_NUM_CPU_DEVICES='2')[
      'server'
    ]
    with self.assertRaisesRegex(
      ValueError,
      'devices: expected 2 x cpu .*JAX_NUM_CPU_DEVICES=2.*, got .cpu',
    ):
      recompute.difference(pathlib.Path(folder))

  def test_unlike_workers_are_logged_recorded_and_refused(self):
    warned, starts, folder = _call_in_process(
      '_of_two_devices', JAX_NUM_CPU_DEVICES='2'
    )['unlike']
    expected = {'0': ['cpu'], '1': ['cpu', 'cpu']}
    self.assertEqual([start['workers'] for start in starts], [expected])
    self.assertLen([x for x in warned if 'different kinds or numbers' in x], 1)
    with self.assertRaisesRegex(
      ValueError,
      'devices: expected workers .* one kind .*, got .cpu and 2 x cpu',
    ):
      recompute.difference(pathlib.Path(folder))


class OtherDevicesTest(absltest.TestCase):
  @functools.cached_property
  def _folder(self):
    return _run('server')

  def _rejection(self, message, change):
    changed = small.copy_with_change(self._folder, 'manifest.json', change)
    with self.assertRaisesRegex(ValueError, message):
      recompute.difference(changed)

  def test_a_run_on_a_gpu_is_refused_on_cpus(self):
    message = 'devices: expected NVIDIA H100 in this process.*, got .cpu'

    def on_gpu(manifest):
      workers = {'0': ['NVIDIA H100'], '1': ['NVIDIA H100']}
      manifest['starts'][0]['workers'] = workers

    self._rejection(message, on_gpu)


class AcceleratorTest(parameterized.TestCase):
  @parameterized.parameters('server', 'pipelined')
  def test_updates_of_servers_are_on_the_cpu(self, route):
    folder = pathlib.Path(tempfile.mkdtemp(), 'record')
    found = _call_in_process(
      *('_of_an_accelerator', route),
      **accelerators.environment(folder, platforms='fake,cpu'),
    )
    self.assertEqual(found, {route: 0.0})
    (record,) = accelerators.records(folder)
    fake, cpu = record.clients['fake'], record.clients['cpu']
    self.assertIn('jit_part', fake.computations)
    self.assertIn('jit_apply', cpu.computations)
    self.assertNotIn('jit_apply', fake.computations)
    self.assertNotIn('jit_add_trees', fake.computations)


if __name__ == '__main__':
  if len(sys.argv) > 1 and sys.argv[1].startswith('_of'):
    print(json.dumps(dict(globals()[sys.argv[1]](*sys.argv[2:]))))
  else:
    absltest.main()
