"""Tests for checks of scheme, wire and route together."""

from absl.testing import absltest, parameterized

from cluster import combinations
from route import ring
from route.route import Allreduce, ParameterServer
from sync import bsp
from tests.support import small
from wire import dense

_NATIVE = Allreduce('native', None, None, 2.0**20, overlap=False)
_RING = Allreduce('ring', None, ring.build_in_order, 2.0**20, overlap=True)
_FIELD = 'config.cluster.min_workers: expected '


def _check(plan, least):
  config = small.config(cluster__workers=4, cluster__min_workers=least)
  scheme = bsp.make(num_workers=4)
  combinations.check(config, plan, scheme, dense.make(dtype='float32'))


class MinWorkersTest(parameterized.TestCase):
  @parameterized.parameters(
    (_NATIVE, 3, "0 or 4, as config.route.name is 'native' .* got 3"),
    (ParameterServer(3, False, False), 2, '0 or at least 3, .*servers.* got 2'),
  )
  def test_workers_that_the_route_needs_are_there_at_the_start(
    self, plan, least, message
  ):
    with self.assertRaisesRegex(ValueError, _FIELD + message):
      _check(plan, least)

  @parameterized.parameters(
    (_NATIVE, 0),
    (_NATIVE, 4),
    (_RING, 1),
    (ParameterServer(3, False, False), 0),
    (ParameterServer(3, False, False), 3),
    (ParameterServer(3, True, False), 1),
  )
  def test_other_starts_are_accepted(self, plan, least):
    _check(plan, least)


if __name__ == '__main__':
  absltest.main()
