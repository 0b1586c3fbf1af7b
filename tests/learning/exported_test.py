"""Files of parameters: what is written is read; other files are refused."""

import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from absl.testing import absltest, parameterized

from learning import exported

_PARAMS = {
  'hidden': {'kernel': jnp.arange(6.0).reshape(2, 3), 'bias': jnp.zeros(3)},
  'scale': jnp.float32(0.5),
}
_STATS = {'norm': {'mean': jnp.full(3, -0.0)}}


def _write(suffix, params=_PARAMS, stats=_STATS):
  path = pathlib.Path(tempfile.mkdtemp(), f'model{suffix}')
  path.write_bytes(exported.encode(suffix, params, stats))
  return path


class ExportedTest(parameterized.TestCase):
  @parameterized.product(suffix=exported.SUFFIXES, stats=[_STATS, ()])
  def test_a_model_gets_the_bits_that_were_written(self, suffix, stats):
    path = _write(suffix, stats=stats)
    params, read = exported.load(path, _PARAMS, stats)
    self.assertEqual(
      np.asarray(params['hidden']['kernel']).tobytes(),
      np.arange(6, dtype=np.float32).tobytes(),
    )
    self.assertEqual(float(params['scale']), 0.5)
    self.assertEqual(params['scale'].shape, ())
    if stats:
      self.assertTrue(np.signbit(read['norm']['mean']).all())
    else:
      self.assertEqual(read, ())

  def test_other_programs_read_the_files(self):
    names = {'params/hidden/kernel', 'params/hidden/bias', 'params/scale'}
    names.add('stats/norm/mean')
    with np.load(_write('.npz')) as file:
      self.assertEqual(set(file.files), names)
    found = safetensors.numpy.load_file(_write('.safetensors'))
    self.assertEqual(set(found), names)

  @parameterized.product(
    suffix=exported.SUFFIXES,
    case=[
      ({'scale': jnp.float32(1)}, 'params/hidden/bias.*which the file lacks'),
      (_PARAMS | {'more': jnp.zeros(1)}, 'the model has no params/more'),
      (_PARAMS | {'scale': jnp.zeros(2)}, r'scale to be float32\[\], got'),
      (_PARAMS | {'scale': jnp.int32(1)}, r'scale to be float32\[\], got int'),
    ],
  )
  def test_files_of_other_models_are_refused_by_name(self, suffix, case):
    params, message = case
    path = _write(suffix, params=params)
    with self.assertRaisesRegex(ValueError, message):
      exported.load(path, _PARAMS, _STATS)

  @parameterized.parameters(*exported.SUFFIXES)
  def test_damaged_files_are_refused(self, suffix):
    path = _write(suffix)
    whole = path.read_bytes()
    for part in (b'', whole[: len(whole) // 2], b'\xff' * 64):
      path.write_bytes(part)
      with self.assertRaisesRegex(ValueError, 'expected a complete'):
        exported.load(path, _PARAMS, _STATS)

  def test_arrays_of_objects_are_not_unpickled(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'model.npz')
    np.savez(path, **{'params/scale': np.array([{}], dtype=object)})
    with self.assertRaisesRegex(ValueError, 'expected a complete .npz'):
      exported.load(path, _PARAMS, _STATS)


if __name__ == '__main__':
  absltest.main()
