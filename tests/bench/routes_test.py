"""Tests for bench.routes."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from bench import routes
from configs import default, sections


class MeasureTest(parameterized.TestCase):
  @parameterized.parameters('forest', 'ring', 'server')
  def test_a_real_run_has_no_field_that_its_route_ignores(self, route):
    folder = tempfile.mkdtemp()
    run = routes.Run('equal4', 1_000_000, 'alone', route)
    with (
      mock.patch.object(routes, 'run_in_lab') as run_in_lab,
      mock.patch.object(routes, 'iteration_s', lambda _: 0.5),
    ):
      took_s = routes.measure(pathlib.Path(folder), run, 0.01, 5)
    self.assertEqual(took_s, 0.5)
    fields = run_in_lab.call_args.args[1]
    config = default.get_config()
    config.update_from_flattened_dict(fields)
    # Raises for a field that the route would ignore.
    name, _ = sections.choose_section(config, 'route')
    self.assertEqual(name, route)


if __name__ == '__main__':
  absltest.main()
