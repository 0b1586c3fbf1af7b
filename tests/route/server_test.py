"""Tests for route.server: numbers of servers and rejected settings."""

from absl.testing import absltest, parameterized

from route import server
from route.route import ParameterServer


def _plan(
  *,
  servers=0,
  dedicated=False,
  pipelined=False,
  workers=4,
  distributed=True,
  divisible=True,
):
  route = server.make(
    servers=servers, dedicated=dedicated, pipelined=pipelined, mirror_s=0.0
  )
  return route.plan(
    None,
    num_workers=workers,
    distributed=distributed,
    divisible=divisible,
    bucket_bytes=2.0**20,
    overlap=True,
  )


class ServerTest(parameterized.TestCase):
  @parameterized.parameters(
    ({}, 4),
    ({'workers': 1}, 1),
    ({'distributed': False}, 1),
    ({'divisible': False}, 1),
    ({'servers': 3}, 3),
    ({'servers': 9, 'distributed': False}, 9),
    ({'servers': 9, 'dedicated': True}, 9),
  )
  def test_the_default_is_a_server_in_each_worker(self, given, many):
    expected = ParameterServer(many, given.get('dedicated', False), False)
    self.assertEqual(_plan(**given), expected)

  @parameterized.parameters(
    {'servers': 3},
    {'servers': 4, 'dedicated': True},
    {'servers': 4, 'distributed': False},
    {'divisible': False},
    {'servers': 4},
    {'workers': 1},
    {},
  )
  def test_pipelining_is_accepted_with_any_servers(self, **given):
    self.assertTrue(_plan(pipelined=True, **given).pipelined)

  @parameterized.parameters(
    ({'dedicated': True}, 'servers: expected at least 1 if .* dedicated, got'),
    ({'servers': 5}, 'servers: expected at most config.cluster.workers, 4'),
  )
  def test_invalid_servers_are_rejected(self, given, message):
    with self.assertRaisesRegex(ValueError, message):
      _plan(**given)


if __name__ == '__main__':
  absltest.main()
