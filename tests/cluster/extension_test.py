"""Finished runs with more epochs continue as if they had had them at first."""

import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import train
from tests.support import small, stopping, together

_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp', 'quorum')


class VirtualTest(parameterized.TestCase):
  @parameterized.parameters(
    *({'scheme': scheme} for scheme in _SCHEMES),
    {'scheme': 'bsp', 'route__name': 'ring', 'cluster__script': ()},
    {
      'scheme': 'bsp',
      'batching__name': 'lb_bsp',
      'batching__lb_bsp__predictor__name': 'ema',
    },
  )
  def test_an_extended_run_equals_one_of_all_epochs(self, scheme, **changed):
    changed['eval_every'] = 0.5
    straight = stopping.straight(scheme, **changed)[0]
    folder = f'{tempfile.mkdtemp()}/run'
    for epochs in (1.0, 2.0, 3.0):
      config = stopping.eventful(scheme, **changed | {'epochs': epochs})
      run = train.build(config, workdir=folder)
      run()
    extended = stopping.results(run)
    for ours, expected in zip(
      extended.pop('params'), straight['params'], strict=True
    ):
      np.testing.assert_array_equal(ours, expected)
    self.assertEqual(
      extended, {k: v for k, v in straight.items() if k != 'params'}
    )
    manifest = json.loads(pathlib.Path(folder, 'manifest.json').read_text())
    self.assertEqual(manifest['config']['epochs'], 3.0)

  def test_the_same_command_again_changes_nothing(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    config = stopping.eventful('asp', epochs=1.0)
    found = []
    for _ in range(2):
      train.build(config, workdir=str(folder))()
      names = ('manifest.json', 'summary.json', 'metrics.jsonl')
      found.append([(folder / name).read_bytes() for name in names])
    self.assertEqual(*found)

  @parameterized.parameters(
    ({'epochs': 0.5}, {}, 'config.epochs: expected 1.0, got 0.5'),
    ({'epochs': 2.0}, {'schedule__name': 'cosine'}, "'cosine' reaches its end"),
    (
      {'epochs': 2.0},
      {'checkpoint__every_examples': 0},
      'finished without a checkpoint',
    ),
    ({'epochs': 2.0, 'seed': 1}, {}, 'config.seed: expected 0, got 1'),
  )
  def test_what_cannot_continue_is_refused_and_left_as_it_was(
    self, changed, fields, message
  ):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    fields = {'epochs': 1.0} | fields
    train.build(stopping.eventful('bsp', **fields), workdir=str(folder))()
    names = ('manifest.json', 'summary.json', 'metrics.jsonl')
    before = [(folder / name).read_bytes() for name in names]
    config = stopping.eventful('bsp', **fields | changed)
    with self.assertRaisesRegex(ValueError, message):
      train.build(config, workdir=str(folder))
    self.assertEqual([(folder / name).read_bytes() for name in names], before)


class RealTest(parameterized.TestCase):
  @parameterized.parameters(
    {'route__server__servers': 2, 'sync__name': 'asp'},
    {'route__name': 'ring'},
  )
  def test_a_run_of_several_processes_continues(self, **fields):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    for epochs in (1.0, 2.0):
      config = small.config(
        cluster__runtime='distributed',
        cluster__workers=2,
        cluster__speed__slowdown=(1.0,),
        checkpoint__every_examples=96,
        epochs=epochs,
        **fields,
      )
      together.run(config, folder)
      summary = json.loads((folder / 'summary.json').read_text())
      self.assertEqual(summary['ended'], 'finished')
      self.assertGreaterEqual(summary['examples'], 192 * epochs)
    rows = [
      json.loads(line)
      for line in (folder / 'metrics.jsonl').read_text().splitlines()
    ]
    evaluated = [r['examples'] for r in rows if r['kind'] == 'evaluation']
    self.assertEqual(evaluated, sorted(set(evaluated)))
    self.assertLen(evaluated, 2)


if __name__ == '__main__':
  absltest.main()
