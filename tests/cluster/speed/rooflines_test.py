"""Tests for cluster.speed.rooflines: shapes as in models/, shares add up."""

import collections
import math

import jax
from absl.testing import absltest, parameterized
from flax import nnx

from cluster.speed import layers, rooflines
from models import alexnet, resnet

_OWN = {'alexnet': {'width': 1.0, 'dropout': 0.5}}
_OWN['resnet50'] = {'width': 1.0, 'depth': 50}
_MAKE = {'alexnet': alexnet.make, 'resnet50': resnet.make}


class RooflinesTest(parameterized.TestCase):
  @parameterized.parameters('alexnet', 'resnet50')
  def test_leaves_are_those_of_the_model(self, model):
    shared = {'num_classes': 1000, 'seed': 0, 'norm': 'batch'}
    made = nnx.eval_shape(
      lambda: _MAKE[model](input_shape=(224, 224, 3), **shared, **_OWN[model])
    )
    leaves = jax.tree.leaves(nnx.state(made, nnx.Param))
    expected = collections.Counter(4 * math.prod(x.shape) for x in leaves)

    found = rooflines.profile(model, 64)

    self.assertEqual(collections.Counter(size for size, _ in found), expected)

  @parameterized.product(model=['alexnet', 'resnet50'], batch=[1, 64, 999])
  def test_shares_add_up_to_1_and_gradients_are_ready_in_order(
    self, model, batch
  ):
    spent = rooflines.time_layers(model, batch)
    total = math.fsum(each.forward + each.backward for each in spent)
    self.assertAlmostEqual(total, 1.0, places=12)

    ready = [part for _, part in rooflines.profile(model, batch)]

    self.assertEqual(ready, sorted(ready))
    self.assertGreater(ready[0], sum(each.forward for each in spent))
    self.assertEqual(ready[-1], 1.0)

  def test_multiplications_are_the_published_ones(self):
    # Krizhevsky (2014): 0.7 billion.  He et al. (2016): 3.8 billion, with the
    # stride in the first 1x1 convolutions; 4.1 with it in the 3x3 ones.
    for model, billions in (('alexnet', 0.71), ('resnet50', 4.1)):
      ops = [each.op for each in rooflines.time_layers(model, 1)]
      self.assertAlmostEqual(
        sum(op.products for op in ops) / 1e9, billions, delta=0.02
      )

  def test_of_many_examples_dense_layers_come_first_and_take_little(self):
    found = rooflines.profile('alexnet', 128)
    dense = sum(size for size, ready in found if ready < 0.45)
    self.assertGreater(dense / sum(size for size, _ in found), 0.95)
    firsts = [size for size, _ in found if size > 10**6][:3]
    self.assertEqual(firsts, [4 * 4096 * n for n in (1000, 4096, 9216)])

  def test_a_layer_takes_the_longer_one_of_products_and_bytes(self):
    # With one example weights dominate a dense layer, with many products.
    for batch in (1, 10**6):
      spent = rooflines.time_layers('alexnet', batch)
      (large,) = (x for x in spent if x.op.leaves == (9216 * 4096, 4096))
      other = next(x for x in spent if x.op.leaves == (4096 * 4096, 4096))
      ratio = large.forward / other.forward
      self.assertAlmostEqual(ratio, 9216 / 4096, delta=0.05)

  @parameterized.parameters(
    ('roofline(vgg, 1)', "field.model: expected one of .*'alexnet'"),
    ('roofline(alexnet, 0)', 'field.batch: expected at least 1'),
  )
  def test_rejects(self, spec, message):
    with self.assertRaisesRegex(ValueError, message):
      layers.read('field', spec)

  def test_a_call_is_a_profile(self):
    found = layers.read('field', 'roofline(alexnet, 128)')
    expected = rooflines.profile('alexnet', 128)
    self.assertEqual([(x.bytes, x.ready) for x in found], expected)
    self.assertLen(found, 21)


if __name__ == '__main__':
  absltest.main()
