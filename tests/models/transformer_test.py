"""Tests for models.transformer."""

import math

import jax
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from tests.support import references, small_models


class TransformerTest(parameterized.TestCase):
  def test_number_of_parameters_is_that_of_gpt2_and_a_head(self):
    model = nnx.eval_shape(
      lambda: small_models.make_transformer(
        input_shape=(1024,), num_classes=50257, layers=12, width=768, heads=12
      )
    )
    head = (768 + 1) * 50257
    self.assertEqual(small_models.size(model), 124_439_808 + head)
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

  def test_logits_match_attention_by_hand(self):
    model = small_models.perturb(
      nnx.merge(*small_models.parts_of('transformer'))
    )
    tokens = small_models.tokens((4, 8))

    x = references.f64(model.tokens.embedding)[tokens] + references.f64(
      model.positions
    )
    for layer in model.layers:
      x = x + references.attention(layer, x, heads=3)
      hidden = references.dense(
        layer.up, references.layer_norm(layer.dense_norm, x)
      )
      cubic = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
      gelu = hidden * (1 + np.tanh(cubic)) / 2
      x = x + references.dense(layer.down, gelu)
    expected = references.dense(
      model.logits, references.layer_norm(model.norm, x)
    )

    logits = small_models.evaluate(model, tokens)
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)

  @parameterized.parameters(
    ({'input_shape': (0,)}, r'input_shape: .* got \(0,\)'),
    ({'input_shape': (8, 2)}, r'input_shape: .* got \(8, 2\)'),
    ({'num_classes': 0}, 'num_classes: .* got 0'),
    ({'layers': 0}, 'layers: .* got 0'),
    ({'heads': 0}, 'heads: .* got 0'),
    ({'width': 10}, 'width: expected a multiple of heads, 3, got 10'),
    ({'width': 0}, 'width: .* got 0'),
    ({'dropout': 1.0}, 'dropout: .* got 1.0'),
  )
  def test_rejects(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      small_models.make_transformer(**changed)


if __name__ == '__main__':
  absltest.main()
