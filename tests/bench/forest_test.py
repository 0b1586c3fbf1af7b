"""Tests for the tables of bench.forest."""

import contextlib
import io
import json
import pathlib
import tempfile
from fractions import Fraction

from absl.testing import absltest

import topology
from bench import forest as bench
from bench import topologies
from topology.clusters import cluster, shapes
from topology.clusters.builders import build_cluster


def _print(part, *args):
  with contextlib.redirect_stdout(io.StringIO()) as out:
    part(*args)
  return out.getvalue()


def _folder(**optima):
  """Returns a folder of meshes of 3 with links of 2 GB/s, and given optima."""
  mesh = cluster.to_json(shapes.full_mesh(3, 2))
  rows = [
    mesh | {'name': name, 'feasible': True, 'allreduce': {'rate_GBps': rate}}
    for name, rate in optima.items()
  ]
  alone = {'name': 'alone', 'feasible': True, 'nodes': mesh['nodes'][:1]}
  split = {'name': 'split', 'feasible': False, 'nodes': mesh['nodes']}
  folder = pathlib.Path(tempfile.mkdtemp())
  text = json.dumps({'topologies': [*rows, alone, split]})
  (folder / 'known.json').write_text(text)
  return folder


class BenchForestTest(absltest.TestCase):
  def test_ratios_of_a_mesh_are_those_of_closed_forms(self):
    graph = shapes.full_mesh(5, 8)  # At best n c / 2.

    ratio = bench.ratios(graph, topology.pack(graph))

    self.assertEqual(ratio['naive_ring'], 4)
    self.assertEqual(ratio['best_ring_both_ways'], 2)
    self.assertEqual(ratio['single_server'], 2.5)
    self.assertEqual(ratio['equal_shards'], 1)
    self.assertIsNone(ratio['hierarchical'])

  def test_rates_are_compared_with_known_optima(self):
    read = topologies.read(_folder(right='3', low='5/2', high='4'))
    self.assertEqual([each.name for each in read], ['right', 'low', 'high'])
    self.assertEqual(read[1].optimum_GBps, Fraction(5, 2))

    folder = _folder(right='3', low='5/2', high='4', higher='5')
    text = _print(bench.print_shares, topologies.read(folder))

    self.assertIn('Of 4 known optima, rates equal 1, ', text)
    self.assertIn('are below 2 and above 1.', text)
    self.assertNotIn('alone', text)

  def test_folders_without_topologies_are_refused(self):
    with self.assertRaisesRegex(ValueError, '--topologies'):
      topologies.read(tempfile.mkdtemp())

  def test_every_cluster_of_a_table_can_be_built(self):
    *groups, _ = topologies.TIMES  # The largest take seconds to build.
    specs = {*topologies.SPREAD.values(), *topologies.FEW_OF}
    specs |= {*topologies.PHASES_OF}
    specs |= {spec for group, *_ in groups for spec in group}

    for spec in specs:
      self.assertGreaterEqual(len(build_cluster(spec).workers), 5)
    self.assertLen(topologies.built_in(), 19)

  def test_chunks_are_printed(self):
    self.assertIn('| forest ', _print(bench.print_chunks))


if __name__ == '__main__':
  absltest.main()
