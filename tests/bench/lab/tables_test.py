"""Tests for bench.lab.tables: configs of all rows, bounds and columns."""

import functools
import itertools
import math
import pathlib
import tempfile

import jax
from absl.testing import absltest, parameterized
from flax import nnx

import train
from bench import hosts
from bench.lab import conditions, tables
from bench.lab.conditions import RUN, TORCH, Lab
from bench.lab.tables import MODELS, TABLES, Scheme, Setting
from learning.layout import Layout
from models import mlp, vgg
from wire import sparse
from wire.multi_round import MultiRoundAllreduce

_IMAGE = {'input_shape': (32, 32, 3), 'num_classes': 10, 'seed': 0}


def _setting(case='equal4', size='5', mbit=200):
  lab = Lab(case, hosts.scaled_cases(mbit)[case])
  return Setting(lab, mbit, size, rounds=4)


def count_torch_parameters(model) -> int:
  """Returns the number of parameters of a model of torch_rank."""
  count, features = 0, 3
  for block in model.get('blocks', ()):
    for out in block:
      count += 9 * features * out + out
      features = out
  hidden = model['hidden']
  if model['name'] == 'vgg':
    features *= model.get('pixels', 1) ** 2
    widths = [features, hidden, hidden, 10]
  else:
    widths = [3072, *hidden, 10]
  pairs = itertools.pairwise(widths)
  return count + sum(a * b + b for a, b in pairs)


class RowsTest(parameterized.TestCase):
  @parameterized.parameters(*TABLES)
  def test_configs_of_all_runs_pass_all_checks(self, name):
    table = TABLES[name]
    folder = pathlib.Path(tempfile.mkdtemp())
    setting = _setting(table.cases[0], table.sizes[0])
    for row, scheme in table.schemes.items():
      condition = tables.make_condition(row, scheme, setting)
      if condition.system != RUN or scheme.model:  # Needs its matrices.
        continue
      config = conditions.base_config(condition)
      config.update_from_flattened_dict(
        conditions.virtual_fields(setting.lab, condition, folder)
      )
      train.check(config)  # Raises for an invalid config.

  def test_gradients_of_ddp_are_ready_in_the_last_local_step(self):
    scheme = Scheme(TORCH, {'kind': 'step'}, local_steps=8)
    job = tables.make_condition('ddp-8', scheme, _setting()).fields
    layers = job['model']['layers']
    self.assertEqual(sum(size for size, _ in layers), 5_000_000)
    self.assertGreater(min(ready for _, ready in layers), 7 / 8)
    self.assertAlmostEqual(job['model']['seconds'], 8 * 0.02)

  def test_an_iteration_of_fragments_has_a_part_of_the_steps(self):
    scheme = TABLES['local_steps'].schemes['ring-32x4']
    condition = tables.make_condition('ring-32x4', scheme, _setting())
    self.assertAlmostEqual(condition.fields['cluster.speed.fixed_s'], 8 * 0.02)
    self.assertEqual(condition.fields['route.overlap_steps'], 8)

  @parameterized.parameters(*MODELS)
  def test_models_of_torch_have_as_many_parameters_as_ours(self, name):
    fields = MODELS[name]
    if name == 'mlp':
      hidden = fields['model.mlp.hidden']
      net = functools.partial(mlp.make, hidden=hidden, **_IMAGE)
    else:
      width = fields['model.vgg.width']
      sizes = {'depth': 16, 'width': width, 'dropout': 0.0}
      net = functools.partial(vgg.make, **sizes, **_IMAGE)
    leaves = jax.tree.leaves(nnx.eval_shape(net))
    self.assertEqual(
      count_torch_parameters(tables.torch_model(name)),
      sum(math.prod(leaf.shape) for leaf in leaves),
    )


class BoundsTest(parameterized.TestCase):
  @parameterized.parameters('float32', 'bfloat16')
  def test_sparse_messages_have_the_bytes_of_the_codec(self, dtype):
    wire = sparse.make(
      dtype=dtype,
      sparsity=0.9,
      chunk=32768,
      correction='masked',
      momentum=0.0,
      select_lag=1,
      warmup=(),
      warmup_epochs=1.0,
    )
    layout = Layout(
      (),
      blank=1_250_000,
      multiple=wire.push.padding,
      bucket_bytes=math.inf,
      step_statistics=0,
    )
    rounds = MultiRoundAllreduce(
      wire, layout.gradient_size, (), uses_numpy=True
    )
    row = 'both' if dtype == 'bfloat16' else 'sparse'
    fields = TABLES['ladder'].schemes[row].fields
    found = tables.count_message_bytes(fields, 5_000_000)
    codec = sum(rounds.size_bytes(-1))
    self.assertAlmostEqual(found / codec, 1.0, delta=0.001)  # Norms.

  @parameterized.parameters(
    ('fused', 5_000_000), ('half', 2_500_000), ('ddp-float16-one', 2_500_000)
  )
  def test_half_precision_sends_half_of_the_bytes(self, row, size_bytes):
    fields = TABLES['ladder'].schemes[row].fields
    found = tables.count_message_bytes(fields, 5_000_000)
    self.assertEqual(found, size_bytes)

  @parameterized.parameters(
    # 1.5 * 5 MB at 6.25 MB/s, after 8 steps of .02 s.
    ('ring-8', 0.16 + 1.2),
    # Meanwhile, with fragments: 32 steps take .64 s.
    ('ring-32x4', 1.2),
  )
  def test_a_sum_of_four_hosts_sends_three_halves_of_the_bytes(
    self, row, bound_s
  ):
    scheme = TABLES['local_steps'].schemes[row]
    bounds = tables.find_bounds(scheme, _setting(mbit=50))
    self.assertAlmostEqual(bounds['optimum_s'], 1.2)
    self.assertAlmostEqual(bounds['bound_s'], bound_s)

  def test_the_backward_pass_takes_as_long_as_the_sum_in_half_precision(self):
    scheme = TABLES['ladder'].schemes['half']
    setting = _setting()
    bounds = tables.find_bounds(scheme, setting)
    condition = tables.make_condition('half', scheme, setting)
    compute_s = condition.fields['cluster.speed.fixed_s']
    self.assertAlmostEqual(compute_s * 2 / 3, bounds['optimum_s'])

  def test_a_model_has_no_bounds(self):
    scheme = TABLES['steps'].schemes['ring']
    self.assertEqual(tables.find_bounds(scheme, _setting(size='vgg8')), {})


class RenderTest(absltest.TestCase):
  def _row(self, scheme, median_s, **fields):
    key = {'case': 'equal4', 'mbit': 200, 'size': '5', 'scheme': scheme}
    return {**key, 'median_s': median_s, **fields}

  def _cells(self, table, rows):
    lines = tables.render(table, rows).splitlines()
    head, *body = [
      [cell.strip() for cell in line.strip('|').split('|')] for line in lines
    ]
    return [dict(zip(head, each, strict=True)) for each in body[1:]]

  def test_local_steps_are_compared_with_rows_of_as_many_steps(self):
    rows = [
      self._row('ring-8', 0.5, virtual_s=0.4, bound_s=0.25, optimum_s=0.1),
      self._row('ring-32x4', 0.9),
      self._row('ddp-8', 0.4),
      self._row('ddp-32', 0.3),
      self._row('diloco-8', 0.625),
    ]
    ring, fragments, *_ = self._cells('local_steps', rows)
    self.assertEqual(ring['over DDP'], '1.250')
    self.assertEqual(ring['over DiLoCo'], '0.800')
    self.assertEqual(ring['over virtual'], '1.250')
    self.assertEqual(ring['over bound'], '2.000')
    self.assertEqual(fragments['over DDP'], '3.000')
    self.assertEqual(fragments['over DiLoCo'], '')

  def test_the_best_row_is_of_the_same_hosts_and_size(self):
    rows = [
      self._row('forest', 0.2, compute_s=0.1, late_compilations=0),
      self._row('ring', 0.3),
      {**self._row('ring', 0.1), 'case': 'slow4'},
    ]
    forest, ring, slow = self._cells('steps', rows)
    self.assertEqual(forest['over best'], '1.00')
    self.assertEqual(ring['over best'], '1.50')
    self.assertEqual(slow['over best'], '1.00')
    self.assertEqual(forest['late compilations'], '0')

  def test_exposed_time_is_that_without_computing(self):
    row = self._row('fused', 0.5, compute_s=0.2, optimum_s=0.6)
    (cells,) = self._cells('ladder', [row])
    self.assertEqual(cells['exposed s'], '0.300')
    self.assertEqual(cells['exposed/optimum'], '0.500')

  def test_a_failed_row_has_no_figures(self):
    row = self._row('ring', 1.0) | {'error': 'no', 'optimum_s': 0.3}
    del row['median_s']
    (cells,) = self._cells('allreduce', [row])
    self.assertEqual(cells['trees'], 'failed')
    self.assertEqual(cells['efficiency'], '')


if __name__ == '__main__':
  absltest.main()
