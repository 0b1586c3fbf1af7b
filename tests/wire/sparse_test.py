"""Tests for wire.sparse against loops over chunks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests.support import collectives
from wire import sparse
from wire.codec import Wire, Workspace
from wire.multi_round import MultiRoundAllreduce

_CASES = [
  {'correction': correction, 'select_lag': lag}
  for correction in ('none', 'masked', 'local')
  for lag in (0, 1)
]


def _make(**changed):
  fields = {
    'dtype': 'float32',
    'sparsity': 0.6,
    'chunk': 4,
    'correction': 'masked',
    'momentum': 0.5 if changed.get('correction') == 'local' else 0.0,
    'select_lag': 0,
    'warmup': (),
    'warmup_epochs': 1.0,
  }
  wire = sparse.make(**fields | changed)
  return wire._replace(push=collectives.jit_codec(wire.push))


@dataclasses.dataclass
class _Worker:
  """One worker, by loops over chunks; numbers are whole, so sums are exact."""

  n: int
  chunk: int
  correction: str
  unsent: np.ndarray = None
  velocity: np.ndarray = None

  def __post_init__(self):
    self.unsent, self.velocity = np.zeros(self.n), np.zeros(self.n)
    starts = range(0, self.n, self.chunk)
    self.places = [slice(start, start + self.chunk) for start in starts]

  def add(self, gradient):
    self.velocity = self.velocity * 0.5 + gradient
    self.unsent += self.velocity if self.correction == 'local' else gradient

  def norms(self):
    return [np.abs(self.unsent[place]).sum() for place in self.places]

  def take(self, chunks):
    sent = np.zeros(self.n)
    for chunk in chunks:
      place = self.places[chunk]
      sent[place] = self.unsent[place]
      self.unsent[place] = self.velocity[place] = 0
    return sent


def _largest(norms, count):
  order = sorted(range(len(norms)), key=lambda chunk: (-norms[chunk], chunk))
  return sorted(order[:count])


def _whole(rng, *shape):
  # Multiples of 2^10, of which momentum leaves whole numbers for a while.
  return rng.integers(-3, 4, shape).astype(np.float32) * 2**10


class SettingsTest(parameterized.TestCase):
  def test_shares_of_whole_chunks_are_not_rounded_down(self):
    for unsent in range(100):
      settings = sparse.ChunkSettings(
        unsent / 100, 1, 'none', 0.0, False, np.dtype(np.float32)
      )
      self.assertEqual(settings.count_sent(100), 100 - unsent)


class ServerTest(parameterized.TestCase):
  @parameterized.parameters(*_CASES)
  def test_messages_and_residuals_match_loops_over_chunks(
    self, correction, select_lag
  ):
    n, sent_chunks = 38, 4  # Chunks of 10, of which the last one is half full.
    codec = _make(correction=correction, select_lag=select_lag).push
    rng, worker = np.random.default_rng(0), _Worker(n, 4, correction)
    state, norms = codec.init(n, 0), [0] * 10
    pushed, arrived = np.zeros(n), np.zeros(n)
    for _ in range(7):
      gradient = _whole(rng, n)
      worker.add(gradient)
      norms = norms if select_lag else worker.norms()
      chunks = _largest(norms, sent_chunks)
      sent = worker.take(chunks)
      norms = worker.norms()

      message, state = codec.encode(state, jnp.asarray(gradient))
      np.testing.assert_array_equal(message[1], chunks)
      np.testing.assert_array_equal(codec.decode(message, n).vector, sent)
      np.testing.assert_array_equal(state.residual['unsent'], worker.unsent)
      if correction == 'local':
        np.testing.assert_array_equal(
          state.residual['velocity'], worker.velocity
        )
      self.assertEqual(sum(p.nbytes for p in message), codec.size_bytes(n))
      got = codec.decode(message, n).arrived
      if correction == 'masked':
        mask = np.isin(np.arange(n) // 4, chunks)
        np.testing.assert_array_equal(got, mask)
      else:
        self.assertEqual(got, ())
      pushed += gradient
      arrived += sent
    if correction != 'local':
      np.testing.assert_array_equal(arrived + worker.unsent, pushed)

  @parameterized.parameters(
    ('bfloat16', 0.0, 1), ('bfloat16', 0.6, 1), ('float16', 0.6, 0)
  )
  def test_rounding_errors_of_half_precision_stay_in_the_residual(
    self, dtype, sparsity, select_lag
  ):
    n, rng = 38, np.random.default_rng(4)
    codec = _make(dtype=dtype, sparsity=sparsity, select_lag=select_lag).push
    state, pushed, arrived = codec.init(n, 0), np.zeros(n), np.zeros(n)
    for _ in range(4):
      gradient = rng.integers(-9999, 9999, n).astype(np.float32)
      message, state = codec.encode(state, jnp.asarray(gradient))
      values, *_ = jax.tree.leaves(message)
      self.assertEqual(values.dtype, dtype)
      leaves = jax.tree.leaves(message)
      self.assertEqual(sum(p.nbytes for p in leaves), codec.size_bytes(n))
      pushed += gradient
      arrived += np.asarray(codec.decode(message, n).vector, np.float64)
    np.testing.assert_array_equal(arrived + state.residual['unsent'], pushed)
    if not sparsity:  # Only rounding errors.
      self.assertBetween(np.abs(state.residual['unsent']).max(), 1, 64)

  def test_the_first_of_equal_chunks_are_sent(self):
    codec = _make(sparsity=0.5).push
    vector = jnp.tile(jnp.array([1.0, -1.0, 2.0, 0.0]), 6)
    (_, chunks), _ = codec.encode(codec.init(24, 0), vector)
    np.testing.assert_array_equal(chunks, [0, 1, 2])

  def test_lagged_norms_do_not_send_a_chunk_twice_before_others(self):
    codec = _make(sparsity=0.75, select_lag=1).push
    state, seen = codec.init(16, 0), []
    for _ in range(5):
      (_, (chunk,)), state = codec.encode(state, jnp.ones(16))
      seen.append(int(chunk))
    self.assertEqual(seen, [0, 1, 2, 3, 0])

  def test_the_whole_vector_is_sent_without_sparsity(self):
    codec = _make(sparsity=0.0).push
    vector = jnp.asarray(np.random.default_rng(0).normal(size=10), jnp.float32)
    message, state = codec.encode(codec.init(10, 0), vector)
    np.testing.assert_array_equal(message, vector)
    np.testing.assert_array_equal(codec.decode(message, 10).vector, vector)
    self.assertFalse(state.residual['unsent'].any())
    self.assertEqual(codec.size_bytes(10), 40)
    self.assertEqual(codec.decode(message, 10).arrived, ())

  def test_velocity_is_not_reset_while_all_chunks_are_sent(self):
    codec = _make(sparsity=0.0, correction='local').push
    state, velocity = codec.init(8, 0), 0
    for _ in range(3):
      message, state = codec.encode(state, jnp.ones(8))
      velocity = 0.5 * velocity + 1
      np.testing.assert_array_equal(message, np.full(8, velocity))

  @parameterized.parameters(
    (0.9, 100, 10, 4 * (10 + 1)),  # One of 10 chunks, and its index.
    (0.9, 120, 10, 4 * 2 * (10 + 1)),  # 10.8 are not sent, rounded down.
    (0.7, 40, 4, 4 * 3 * (4 + 1)),  # In floats 1 - .7 is more than .3.
    (0.99, 37, 4, 4 * (4 + 1)),  # At least one.
    (0.05, 37, 4, 4 * 37),  # All of them, without indices.
  )
  def test_size_bytes_is_the_size_of_a_message(
    self, sparsity, n, chunk, size_bytes
  ):
    codec = _make(sparsity=sparsity, chunk=chunk).push
    self.assertEqual(codec.size_bytes(n), size_bytes)
    message, _ = codec.encode(codec.init(n, 0), jnp.ones(n))
    sent = message if isinstance(message, tuple) else (message,)
    self.assertEqual(sum(part.nbytes for part in sent), size_bytes)


class SumTest(parameterized.TestCase):
  @parameterized.parameters(
    *(
      case | {'uses_numpy': uses_numpy}
      for case in _CASES
      for uses_numpy in (False, True)
    )
  )
  def test_all_workers_of_an_allreduce_send_the_same_chunks(
    self, correction, select_lag, uses_numpy
  ):
    n, sent_chunks, count = 40, 4, 3
    codec = _make(correction=correction, select_lag=select_lag).push
    rng = np.random.default_rng(1)
    workers = [_Worker(n, 4, correction) for _ in range(count)]
    states = [codec.init(n, k) for k in range(count)]
    norms, pushed, arrived = np.zeros(10), np.zeros(n), np.zeros(n)
    for _ in range(6):
      gradients = _whole(rng, count, n)
      for worker, gradient in zip(workers, gradients, strict=True):
        worker.add(gradient)
      if not select_lag:
        norms = np.sum([worker.norms() for worker in workers], axis=0)
      chunks = _largest(norms, sent_chunks)
      total = np.sum([worker.take(chunks) for worker in workers], axis=0)
      norms = np.sum([worker.norms() for worker in workers], axis=0)

      sums, states, sizes = collectives.allreduce(
        codec, states, gradients, uses_numpy=uses_numpy
      )
      mask = np.isin(np.arange(n) // 4, chunks)
      for got, state, worker in zip(sums, states, workers, strict=True):
        np.testing.assert_array_equal(got.vector, total)
        np.testing.assert_array_equal(state.residual['unsent'], worker.unsent)
        if correction == 'masked':
          np.testing.assert_array_equal(got.arrived, mask)
        else:
          self.assertEqual(got.arrived, ())
      # (1 - s) P + C values, in one sum or two.
      values, all_norms = 4 * sent_chunks * 4, 4 * 10
      expected = [values + all_norms] if select_lag else [all_norms, values]
      self.assertEqual(sizes, expected)
      pushed += gradients.sum(axis=0)
      arrived += total
    if correction != 'local':
      kept = sum(worker.unsent for worker in workers)
      np.testing.assert_array_equal(arrived + kept, pushed)

  @parameterized.parameters(False, True)
  def test_an_allreduce_without_sparsity_is_a_plain_sum(self, uses_numpy):
    codec = _make(sparsity=0.0).push
    vectors = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    states = [codec.init(12, k) for k in range(3)]
    sums, states, sizes = collectives.allreduce(
      codec, states, vectors, uses_numpy=uses_numpy
    )
    for got in sums:
      np.testing.assert_array_equal(got.vector, sum(vectors))
      self.assertEqual(got.arrived, ())
    self.assertEqual(sizes, [48])

  @parameterized.parameters(
    ('bfloat16', 1, False),
    ('bfloat16', 1, True),
    ('float16', 0, False),
    ('float16', 0, True),
  )
  def test_rounding_errors_of_an_allreduce_stay_in_residuals(
    self, dtype, select_lag, uses_numpy
  ):
    codec = _make(dtype=dtype, select_lag=select_lag).push
    rng = np.random.default_rng(3)
    states = [codec.init(40, k) for k in range(2)]
    kept = np.zeros((2, 40))
    for _ in range(4):
      # Whole numbers, which halves do not hold; sums in float32 are exact.
      gradients = rng.integers(-9999, 9999, (2, 40)).astype(np.float32)
      sums, states, _ = collectives.allreduce(
        codec, states, gradients, uses_numpy=uses_numpy
      )
      pushed = kept + gradients
      kept = np.array([state.residual['unsent'] for state in states])
      sent = pushed - kept
      own = sent.astype(np.float32).astype(dtype).astype(np.float64)
      np.testing.assert_array_equal(sent, own)
      for got in sums:
        np.testing.assert_array_equal(got.vector, sent.sum(0))

  @parameterized.parameters(*_CASES)
  def test_numpy_and_jax_allreduces_agree_at_any_scale(
    self, correction, select_lag
  ):
    codec = _make(correction=correction, select_lag=select_lag).push
    wire, rng = Wire(codec, codec, codec), np.random.default_rng(2)
    allreduces = [
      MultiRoundAllreduce(wire, 40, (), uses_numpy=uses_numpy)
      for uses_numpy in (False, True)
    ]
    states = [{k: each.init(k) for k in range(2)} for each in allreduces]
    for scale in (1.0, 4.0, 0.5):
      vectors = {k: scale * _whole(rng, 40) for k in range(2)}
      ends = [
        each.reduce(own, vectors, stage=0, scale=scale)
        for each, own in zip(allreduces, states, strict=True)
      ]
      jax.tree.map(np.testing.assert_array_equal, *ends)
      states = [after for _, after in ends]

  def test_a_numpy_allreduce_reuses_memory_but_not_the_state_before(self):
    for correction in ('masked', 'local'):
      codec = _make(correction=correction, select_lag=1).push
      multi_round = MultiRoundAllreduce(
        Wire(codec, codec, codec), 40, (), uses_numpy=True
      )
      workspace, state = (
        Workspace(sum=np.zeros(40, np.float32)),
        multi_round.init(0),
      )
      vectors, sums = np.zeros((2, 40), np.float32), []
      for step in range(4):
        gradient = _whole(np.random.default_rng(step), 40)
        expected, wanted = multi_round.reduce(
          {0: state}, {0: gradient}, stage=0, scale=1.0
        )
        before = jax.tree.map(np.array, state)
        vectors[step % 2] = gradient
        rounds = multi_round.start(
          state, vectors[step % 2], stage=0, scale=1.0, workspace=workspace
        )
        contribution = next(rounds).copy()
        with self.assertRaises(StopIteration) as end:
          rounds.send(contribution)
        summed, after = end.exception.value
        jax.tree.map(np.testing.assert_array_equal, summed, expected)
        jax.tree.map(np.testing.assert_array_equal, after, wanted[0])
        jax.tree.map(np.testing.assert_array_equal, state, before)
        sums.append(summed.vector)
        state = after
      self.assertTrue(all(each is sums[0] for each in sums))

  def test_a_workspace_may_have_served_other_sizes_and_sparsities(self):
    workspace, rng = Workspace(), np.random.default_rng(0)
    for n, sparsity in ((40, 0.6), (40, 0.0), (40, 0.6), (16, 0.5), (40, 0.8)):
      codec = _make(sparsity=sparsity).push
      multi_round = MultiRoundAllreduce(
        Wire(codec, codec, codec), n, (), uses_numpy=True
      )
      state, gradient = multi_round.init(0), _whole(rng, n)
      results = []
      for used in (Workspace(), workspace):
        rounds = multi_round.start(
          state, gradient.copy(), stage=0, scale=1.0, workspace=used
        )
        contribution = next(rounds)
        try:
          while True:
            contribution = rounds.send(contribution.copy())
        except StopIteration as end:
          results.append(end.value)
      jax.tree.map(np.testing.assert_array_equal, *results)


class WireTest(parameterized.TestCase):
  def test_sparsity_rises_during_warm_up(self):
    wire = _make(sparsity=0.9, warmup=(0.0, 0.5), warmup_epochs=2.0)
    sizes = [wire.push_bytes(40, 3, stage) for stage in range(3)]
    stats = 4 * 3
    self.assertEqual(sizes, [4 * 40 + stats, 4 * 5 * 5 + stats, 4 * 5 + stats])
    found = [wire.stage(epochs) for epochs in (0.0, 1.9, 2.0, 3.9, 4.0, 99.0)]
    self.assertEqual(found, [0, 0, 1, 1, 2, 2])
    # The residual of one stage is sent in another.
    state = wire.pushes[1].init(8, 0)
    _, state = wire.pushes[1].encode(state, jnp.arange(8.0))
    message, _ = wire.pushes[0].encode(state, jnp.zeros(8))
    np.testing.assert_array_equal(message, [0, 1, 2, 3, 0, 0, 0, 0])
    self.assertEqual(wire.pull_bytes(40, 3), 4 * 43)

  @parameterized.parameters(
    ({'correction': 'local', 'momentum': 0.0}, 'momentum: expected above 0'),
    ({'momentum': 0.9}, "momentum: expected 0, as .* 'masked', got 0.9"),
    ({'warmup': (0.5, 0.2)}, r'warmup: expected rising numbers from 0 to 0.6'),
    ({'warmup': (0.7,)}, 'warmup: expected'),
  )
  def test_rejects_settings_out_of_range(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _make(**changed)

  def test_rejects_a_chunk_larger_than_the_vector(self):
    message = (
      'chunk: expected at most 7, the numbers that travel together, got 8'
    )
    codec = _make(chunk=8).push
    for call in (codec.size_bytes, lambda n: codec.init(n, 0)):
      with self.assertRaisesRegex(ValueError, message):
        call(7)


if __name__ == '__main__':
  absltest.main()
