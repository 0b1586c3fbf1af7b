"""Tests of the interface of codecs, with a codec that is not elementwise.

It sends the larger half of each server's share and keeps a residual, so that it
has state, and messages of other shapes than the vectors.
"""

import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import train
from configs import default
from learning.local_codec import LocalCodec
from learning.shard_codec import ShardCodec, byte_views
from tests.support import small, stopping
from wire import dense
from wire.codec import (
  Codec,
  PartialVector,
  Payload,
  State,
  StreamablePrefix,
  Wire,
)


def _half(n):
  return max(n // 2, 1)


def _encode(state, vector):
  total = state.residual + vector
  _, places = jax.lax.top_k(jnp.abs(total), _half(len(vector)))
  return (places, total[places]), State(total.at[places].set(0))


def _codec():
  return Codec(
    init=lambda n, worker: State(jnp.zeros(n, jnp.float32)),
    encode=_encode,
    decode=lambda message, n: PartialVector(
      jnp.zeros(n).at[message[0]].set(message[1])
    ),
    size_bytes=lambda n: 8 * _half(n),
  )


def _wire():
  exact = dense.cast(jnp.dtype('float32'))
  return Wire(push=_codec(), pull=exact, stats=exact)


def _tree(seed):
  rng = np.random.default_rng(seed)
  return {
    name: jnp.array(rng.normal(size=shape), jnp.float32)
    for name, shape in (('a', (5, 3)), ('b', (6,)))
  }


class InterfaceTest(parameterized.TestCase):
  @parameterized.parameters(1, 5)
  def test_trees_and_flat_vectors_give_equal_results(self, servers):
    stats = {'mean': jnp.arange(5.0)}
    wire, params = _wire(), _tree(0)
    codec = ShardCodec(params, stats, servers=servers, wire=wire)
    made = LocalCodec(wire, params, stats, servers=servers)
    state, states, sent = made.init(0), codec.init(0), []
    for step in range(3):
      payload = Payload(_tree(step + 1), stats)
      message, state = made.encode(state, payload, 0, 1.0)
      messages, states, _ = codec.encode(states, payload)
      got = made.decode(message, 0)
      vectors = []
      for server, each in enumerate(messages):
        carried = np.concatenate(byte_views(each))
        self.assertLen(carried, codec.push_bytes(server))
        vectors.append(
          codec.decode(codec.push_message(carried, server), server)
        )
      jax.tree.map(
        np.testing.assert_array_equal, Payload(*codec.join(vectors)), got
      )
      jax.tree.map(np.testing.assert_array_equal, got.stats, stats)
      sent.append(got.gradient)

    # The residual is what was not sent.
    without = ShardCodec(params, (), servers=servers, wire=wire)
    rest, _ = without.join([(each.residual, ()) for each in state])
    total = jax.tree.map(lambda *parts: sum(parts), rest, *sent)
    expected = jax.tree.map(
      lambda *parts: sum(parts), *[_tree(step + 1) for step in range(3)]
    )
    jax.tree.map(
      lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5),
      total,
      expected,
    )
    jax.tree.map(np.testing.assert_array_equal, made.pull(params), params)


class StreamablePrefixTest(parameterized.TestCase):
  @parameterized.product(count=[*range(1, 12)], least=[1, 2, 3, 5])
  def test_chunks_travel_in_the_most_buckets_of_enough_bytes(
    self, count, least
  ):
    prefix = StreamablePrefix(
      chunk=2,
      count=lambda n: count,
      choose=lambda state, n: np.arange(count),
      encode=lambda residual, vector: vector,
    )
    buckets = prefix.buckets(24, 8 * least)
    chunks = [chunk for bucket in buckets for chunk in range(*bucket)]
    self.assertEqual(chunks, [*range(count)])
    self.assertLen(buckets, max(count // least, 1))
    smallest = min(end - start for start, end in buckets)
    self.assertGreaterEqual(smallest, min(least, count))


class RunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    patched = mock.patch.object(dense, 'make', lambda dtype: _wire())
    self.enter_context(patched)

  def test_checkpoints_have_the_state_of_codecs(self):
    config = stopping.eventful('ssp', route__server__servers=2)
    straight = small.build(config)
    straight()
    expected = stopping.results(straight)
    workdir = f'{tempfile.mkdtemp()}/run'
    run = train.build(config, workdir=workdir)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[40], killed_at=49)
    run = train.build(config, workdir=workdir)
    self.assertIsNotNone(run.sizes)
    run()
    got = stopping.results(run)
    for one, other in zip(got['params'], expected['params'], strict=True):
      np.testing.assert_array_equal(one, other)
    self.assertEqual(got['summary'], expected['summary'])

  def test_rejects_pipelined_servers(self):
    message = 'config.route.server.pipelined: .* does not treat numbers one by'
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(route__server__pipelined=True))

  def test_a_run_without_a_model_counts_the_bytes_of_messages(self):
    config = default.get_config()
    config.model.name, config.epochs = 'none', 0.01
    config.model.none.size_bytes, config.route.server.servers = 4 * 1001, 2
    config.cluster.workers, config.cluster.speed.slowdown = 1, (1.0,)
    summary = small.build(config)()
    both_ways = 8 * (501 // 2 + 500 // 2) + 4 * 1001
    self.assertEqual(summary['bytes'], summary['iterations'] * both_ways)


if __name__ == '__main__':
  absltest.main()
