"""Tests for models.transformer."""

import jax
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from models import transformer
from tests.support import references, small_models


class TransformerTest(parameterized.TestCase):
  @parameterized.parameters(
    ('tiny', 256, 2, 64, 176),
    ('10M', 256, 6, 384, 1024),
    ('30M', 256, 6, 640, 1712),
    ('124M', 50257, 12, 768, 2048),
    ('124M', 50304, 12, 768, 2048),
  )
  def test_sizes_have_the_number_of_parameters_of_their_name(
    self, name, vocabulary, layers, width, hidden
  ):
    model = nnx.eval_shape(
      lambda: small_models.make_transformer(
        num_classes=vocabulary, size=name, layers=0, width=0, heads=0
      )
    )
    layer = 4 * width**2 + 3 * width * hidden + 2 * width
    count = small_models.size(model)
    self.assertEqual(count, vocabulary * width + layers * layer + width)
    if name == '124M':
      self.assertAlmostEqual(count / 124e6, 1, delta=0.01)
    elif name != 'tiny':
      self.assertAlmostEqual(count / 1e6 / int(name[:-1]), 1, delta=0.08)
    _, params, rest = nnx.split(model, nnx.Param, ...)
    self.assertNotEmpty(jax.tree.leaves(params))
    self.assertEmpty(jax.tree.leaves(rest))

  @parameterized.parameters(1, 5, 8)
  def test_short_inputs_give_the_logits_of_a_start(self, length):
    model = nnx.merge(*small_models.parts_of('transformer'))
    tokens = small_models.tokens((4, 8))
    np.testing.assert_allclose(
      small_models.evaluate(model, tokens[:, :length]),
      small_models.evaluate(model, tokens)[:, :length],
      rtol=1e-4,
      atol=1e-5,
    )

  def test_a_token_changes_no_logits_before_it(self):
    graph, params, rest = small_models.parts_of('transformer')
    logits = small_models.jit(
      lambda tokens: nnx.merge(graph, params, rest)(tokens)
    )
    tokens = small_models.tokens((4, 8))
    before = np.asarray(logits(tokens))

    self.assertEqual((before.shape, before.dtype), ((4, 8, 11), np.float32))
    for t in range(8):
      changed = tokens.copy()
      changed[:, t] = (changed[:, t] + 1) % 11
      after = np.asarray(logits(changed))
      np.testing.assert_array_equal(after[:, :t], before[:, :t])
      differs = (after != before).any(axis=-1)
      self.assertTrue(differs[:, t:].all())

  @parameterized.parameters(((0,) * 8,), ((0, 0, 0, 1, 1, 1, 1, 2),))
  def test_logits_match_a_forward_pass_by_hand(self, documents):
    model = small_models.perturb(
      nnx.merge(*small_models.parts_of('transformer'))
    )
    tokens = small_models.tokens((4, 8))
    documents = np.tile(np.array(documents, np.int32), (4, 1))

    table = references.f64(model.tokens.embedding)
    x = table[tokens]
    for layer in model.layers:
      x = x + references.attention(layer, x, heads=3, documents=documents)
      x = x + references.swiglu(layer, x)
    expected = references.rms_norm(model.norm, x) @ table.T

    inputs = (tokens, documents) if documents.any() else tokens
    logits = small_models.evaluate(model, inputs)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-5)

  def test_documents_in_a_row_are_as_if_each_had_its_own(self):
    model = nnx.merge(*small_models.parts_of('transformer'))
    tokens = small_models.tokens((2, 8))
    documents = np.array([[0, 0, 0, 1, 1, 1, 1, 1], [5, 6, 6, 6, 6, 6, 7, 7]])
    packed = small_models.evaluate(model, (tokens, documents.astype(np.int32)))
    for row, numbers in enumerate(documents):
      for number in np.unique(numbers):
        (places,) = np.nonzero(numbers == number)
        alone = small_models.evaluate(model, tokens[row : row + 1, places])
        # Positions count from the row's start: only distances matter.
        np.testing.assert_allclose(
          packed[row, places], alone[0], rtol=1e-4, atol=1e-6
        )

  def test_products_of_rotated_vectors_depend_on_distances_alone(self):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 1, 1, 8), np.float32)
    length = 1024
    queries, keys = (
      np.asarray(transformer.rotate(np.repeat(x, length, axis=1)))[0, :, 0]
      for x in (query, key)
    )
    np.testing.assert_allclose(
      np.linalg.norm(queries, axis=-1), np.linalg.norm(query), rtol=1e-5
    )
    scores = queries.astype(np.float64) @ keys.T
    for distance in (0, 1, 7, 1000):
      diagonal = np.diagonal(scores, -distance)
      np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    self.assertGreater(np.ptp(scores[-1]), 0.1)

  @parameterized.parameters(
    ({'input_shape': (0,)}, r'input_shape: .* got \(0,\)'),
    ({'input_shape': (8, 2)}, r'input_shape: .* got \(8, 2\)'),
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    ({'width': 15}, 'width: expected a multiple of twice the heads, 6, got 15'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      small_models.make_transformer(**changed)


if __name__ == '__main__':
  absltest.main()
