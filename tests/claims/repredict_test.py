"""Tests for claims.repredict."""

import contextlib
import io
import pathlib
import tempfile

import msgspec
from absl.testing import absltest

from bench.lab import conditions
from claims import repredict
from claims.measures import lab


class RepredictTest(absltest.TestCase):
  def _record(self):
    place, (condition, *_) = lab.draw_conditions('full')[0]
    run = condition._replace(iterations=4)
    return {
      'lab': place.name,
      'condition': condition.name,
      'iterations': 4,
      'status': 'finished',
      'virtual_s': 9.0,
      'real_s': 2 * conditions.predict(place, run).mean_s,
    }

  def test_prints_the_error_of_the_present_model(self):
    record = self._record()
    path = pathlib.Path(tempfile.mkdtemp(), 'results.json')
    path.write_bytes(msgspec.json.encode({'records': [record]}))

    with contextlib.redirect_stdout(io.StringIO()) as out:
      code = repredict.main([f'--results={path}'])

    self.assertEqual(code, 0)
    self.assertIn('-50.0 %', out.getvalue())

  def test_unknown_condition_is_refused(self):
    record = self._record() | {'condition': 'bsp, on the moon'}

    with self.assertRaisesRegex(ValueError, 'drawn one, got .*on the moon'):
      repredict.repredict([record])


if __name__ == '__main__':
  absltest.main()
