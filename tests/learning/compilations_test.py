"""Tests for learning.compilations and for the precision of products."""

import json
import os
import pathlib
import re
import tempfile
import types
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import train
from data.dataset import Split
from learning import build, compilations
from learning.evaluation import TaskEvaluation
from models.task import Task
from outputs import manifests
from tests.support import small

_ON = '--xla_gpu_deterministic_ops=true'
_OFF = '--xla_gpu_deterministic_ops=false'
_NAMES = {
  'float32': 'HIGHEST',
  'tensorfloat32': 'HIGH',
  'bfloat16': 'DEFAULT',
}
_PRINTS = """
import os
from learning import compilations
from tests.support import small
before = compilations.is_started()
run = small.build(small.config(deterministic={value}))
print(before, repr(os.environ.get('XLA_FLAGS', '')))
"""


def _environ(flags):
  """Returns a context with XLA_FLAGS as a user has set them."""
  return mock.patch.dict(
    os.environ, {'XLA_FLAGS': flags, 'SYNCOPATE_XLA_FLAGS': ''}
  )


def _device(platform, kind, **attributes):
  return types.SimpleNamespace(
    platform=platform, device_kind=kind, **attributes
  )


def _on_gpu():
  """Returns a context in which JAX has started on a GPU."""
  gpu = _device('gpu', 'NVIDIA H100')
  return mock.patch.object(jax, 'local_devices', lambda: [gpu])


class FlagsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('', True, _ON),
    ('', False, ''),
    ('--xla_dump_to=x', True, f'--xla_dump_to=x {_ON}'),
    ('--xla_dump_to=x', False, '--xla_dump_to=x'),
    (_ON, True, _ON),
    ('--xla_gpu_deterministic_ops', True, '--xla_gpu_deterministic_ops'),
    ('--xla_gpu_deterministic_ops=1', True, '--xla_gpu_deterministic_ops=1'),
    (_OFF, False, _OFF),
    (f'{_OFF} {_ON}', True, f'{_OFF} {_ON}'),  # The last one counts.
  )
  def test_flags_are_those_of_the_config(self, given, deterministic, expected):
    with _environ(given):
      compilations.configure(small.config(deterministic=deterministic))
      self.assertEqual(os.environ.get('XLA_FLAGS', ''), expected)

  @parameterized.parameters(
    (_ON, False, 'expected no .*=true, because config.deterministic is False'),
    (_OFF, True, 'expected no .*=false, because config.deterministic is True'),
    (f'{_ON} {_OFF}', True, 'expected no .*=false'),
    ('--xla_gpu_deterministic_ops=yes', True, 'true or false, got .*=yes'),
    ('/no/such/file', True, 'a file of flags, got .*No such file'),
  )
  def test_a_contradiction_is_refused(self, given, deterministic, message):
    config = small.config(deterministic=deterministic)
    with _environ(given), self.assertRaisesRegex(ValueError, message) as raised:
      train.build(config, workdir=f'{tempfile.mkdtemp()}/run')
    self.assertStartsWith(str(raised.exception), 'XLA_FLAGS: ')

  def test_a_file_of_flags_is_read(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'flags')
    path.write_text('--xla_dump_to=x\n--xla_dump_hlo_as_text\n')
    with _environ(str(path)):
      compilations.configure(small.config())
      expected = f'--xla_dump_to=x --xla_dump_hlo_as_text {_ON}'
      self.assertEqual(os.environ['XLA_FLAGS'], expected)

  def test_flags_of_an_earlier_run_do_not_count_as_the_users(self):
    with _environ('--xla_dump_to=x'):
      for deterministic in (True, False, True):
        compilations.configure(small.config(deterministic=deterministic))
        has = _ON in os.environ['XLA_FLAGS'].split()
        self.assertEqual(has, deterministic)

  @parameterized.parameters(
    ('', True, 'expected False, because XLA has started'),
    ('', False, ''),
    (_ON, True, ''),
  )
  def test_on_a_gpu_other_flags_after_the_start_of_xla_are_refused(
    self, given, deterministic, message
  ):
    jax.devices()
    config = small.config(deterministic=deterministic)
    with _environ(given), _on_gpu():
      if message:
        with self.assertRaisesRegex(ValueError, message) as raised:
          compilations.configure(config)
        self.assertStartsWith(str(raised.exception), 'config.deterministic: ')
        self.assertEqual(os.environ['XLA_FLAGS'], given)
      else:
        compilations.configure(config)

  @parameterized.parameters(True, False)
  def test_flags_are_set_before_xla_starts(self, deterministic):
    done = small.python(
      '-c',
      _PRINTS.format(value=deterministic),
      XLA_FLAGS='',
      SYNCOPATE_XLA_FLAGS='',
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    expected = _ON if deterministic else ''
    self.assertEqual(done.stdout, f'False {expected!r}\n')


class PrecisionTest(parameterized.TestCase):
  @parameterized.parameters(*_NAMES)
  def test_gradients_for_gpus_have_the_precision_of_the_config(self, matmul):
    text = _lower(precision__matmul=matmul)
    for operation in ('dot_general', 'convolution'):
      found = _precisions(text, operation)
      self.assertGreater(len(found), 3)
      self.assertEqual({*found}, {_NAMES[matmul]}, operation)

  def test_half_precision_has_the_default_of_jax(self):
    text = _lower(precision__dtype='bfloat16')
    self.assertEqual({*_precisions(text, 'convolution')}, {'DEFAULT'})
    self.assertNotRegex(text, r'(dot_general|convolution).*xf32')
    with self.assertRaisesRegex(
      ValueError, "precision.matmul: .* .*config.precision.dtype 'bfloat16'"
    ):
      small.build(
        small.config(
          precision__dtype='bfloat16', precision__matmul='tensorfloat32'
        )
      )

  @parameterized.parameters(*_NAMES)
  def test_evaluations_have_the_precision_and_other_programs_have_not(
    self, matmul
  ):
    seen = []

    def correct(params, stats, inputs, targets):
      seen.append(jax.config.jax_default_matmul_precision)
      return (inputs @ params)[:, 0] > 0

    split = Split(np.ones((3, 2), np.float32), np.zeros(3, np.int32))
    task = Task((), loss=lambda *_: (0.0, ()), correct=correct)
    evaluation = TaskEvaluation(task, split, matmul=matmul)
    evaluation(np.ones((2, 1), np.float32), ())
    self.assertEqual({*seen}, {matmul})
    self.assertIsNone(jax.config.jax_default_matmul_precision)

  @parameterized.parameters(
    ('float32', _device('cpu', 'cpu'), 'float32'),
    ('tensorfloat32', _device('cpu', 'cpu'), 'float32'),
    ('float32', _device('gpu', 'H100', compute_capability='9.0'), 'float32'),
    (
      *('tensorfloat32', _device('gpu', 'H100', compute_capability='9.0')),
      'tensorfloat32',
    ),
    (
      *('bfloat16', _device('gpu', 'B200', compute_capability='10.0')),
      'tensorfloat32',
    ),
    (
      'tensorfloat32',
      _device('gpu', 'T4', compute_capability='7.5'),
      'float32',
    ),
    ('bfloat16', _device('tpu', 'TPU v5'), 'bfloat16'),
  )
  def test_precision_of_a_device_is_reported(self, matmul, device, expected):
    config = small.config(precision__matmul=matmul, deterministic=False)
    self.assertEqual(
      compilations.numerics(config.to_dict(), device),
      {'deterministic': device.platform == 'cpu', 'matmul': expected},
    )

  def test_a_missing_precision_is_logged(self):
    with self.assertLogs('absl', 'WARNING') as logs:
      small.build(small.config(precision__matmul='tensorfloat32'))
    expected = "is 'tensorfloat32', but cpu multiplies in float32"
    self.assertIn(expected, ' '.join(logs.output))

  def test_runs_of_different_precision_differ(self):
    made = []
    for fields in ({}, {'precision__matmul': 'tensorfloat32'}):
      run = small.build(small.config(**fields))
      made.append(run.files.workdir)
      run.files.release()
    found = [json.loads((path / 'manifest.json').read_text()) for path in made]
    precisions = [each['config']['precision']['matmul'] for each in found]
    self.assertEqual(precisions, ['float32', 'tensorfloat32'])
    on_cpu = {'deterministic': True, 'matmul': 'float32'}
    self.assertEqual([each['numerics'] for each in found], [on_cpu] * 2)
    for each in found:
      self.assertIn(_ON, each['xla_flags'])
    with (
      self.assertRaisesRegex(
        ValueError, "precision.matmul: expected 'tensorfloat32', got 'float32'"
      ),
    ):
      train.build(small.config(), workdir=str(made[1]))
    with self.assertRaisesRegex(ValueError, 'deterministic: expected True'):
      train.build(small.config(deterministic=False), workdir=str(made[0]))

  def test_fingerprints_of_defaults_equal_those_without_the_fields(self):
    def fingerprint(config):
      return manifests.fingerprint(
        manifests.described(config, {'scheme': None})
      )

    configs = [
      small.config(**fields).to_dict()
      for fields in (
        {},
        {'deterministic': False},
        {'precision__matmul': 'tensorfloat32'},
      )
    ]
    found = [*map(fingerprint, configs)]
    self.assertLen({*found}, 3)


def _lower(**fields):
  """Returns the program of a small convolutional model's gradient, for CUDA."""
  config = small.config(
    data__synthetic__pixels=32,
    model__name='vgg',
    model__mlp__hidden=(128,),
    model__vgg__depth=11,
    **fields,
  )
  learned = build.from_config(config)
  inputs, targets = (part[:8] for part in learned.gradient.train)
  traced = jax.jit(learned.gradient.part).trace(
    *(learned.params, inputs, targets, np.int32(8), np.zeros(3, np.uint32))
  )
  return traced.lower(lowering_platforms=('cuda',)).as_text()


def _precisions(text, operation):
  """Returns the precisions of the operands of all operations of a kind."""
  lines = [line for line in text.splitlines() if f'.{operation}' in line]
  found = []
  for line in lines:
    attribute = re.search(r'precision(?:_config)? = \[([^]]*)\]', line)
    found += re.findall(r'HIGHEST|HIGH|DEFAULT', attribute[1])
  return found


if __name__ == '__main__':
  absltest.main()
