"""Tests for pictures of clusters and forests."""

import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from matplotlib import colors, image

import topology
from analysis.drawing import forests, placing
from topology.clusters import cluster as clusters
from topology.clusters import shapes
from topology.clusters.builders import build_cluster

_UP, _DOWN, _BOTTLENECK, _ROOT_NODE = '#0072B2', '#D55E00', '#E69F00', '#F0E442'


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


def _pixels(cluster, packed=None, **options):
  file = _folder() / 'it.png'
  forests.draw(cluster, packed, **options).savefig(file)
  return image.imread(file)[..., :3]


def _count(pixels, color):
  """Returns the number of pixels of a color."""
  distance = np.abs(pixels - np.array(colors.to_rgb(color))).max(axis=2)
  return int((distance < 0.02).sum())


def _rename_nodes(cluster, name):
  """Returns the cluster with other names of nodes."""
  text = json.dumps(clusters.to_json(cluster))
  for number, node in enumerate(cluster.nodes):
    text = text.replace(f'"{node}"', json.dumps(name.format(number)))
  return clusters.from_json(json.loads(text))


class PictureTest(parameterized.TestCase):
  def test_an_allreduce_goes_up_and_down(self):
    cluster = build_cluster('dgx_a100(1)')
    packed = topology.pack(cluster)
    pixels = _pixels(cluster, packed)
    for color in (_UP, _DOWN, _ROOT_NODE):
      self.assertGreater(_count(pixels, color), 100, color)
    # The cluster alone has no trees, and is smaller.
    alone = _pixels(cluster, packed, trees=0)
    self.assertEqual(_count(alone, _DOWN), 0)
    self.assertLess(alone.size, pixels.size)

  def test_an_allgather_goes_down_and_has_a_slowest_cut(self):
    cluster = shapes.star([10, 20, 30], [5, 6, 7])
    pixels = _pixels(cluster, topology.pack(cluster, collective='allgather'))
    self.assertEqual(_count(pixels, _UP), 0)
    self.assertGreater(_count(pixels, _DOWN), 100)
    self.assertGreater(_count(pixels, _BOTTLENECK), 500)

  @parameterized.parameters(
    'ring(1, 1)',
    'line(3, 1)',
    'fat_tree(4, 1)',
    'random_mesh(64, 1)',
    'tree([8, 8, 4], [8, 4, 1])',
  )
  def test_a_cluster_is_drawn_alone(self, spec):
    pixels = _pixels(build_cluster(spec))
    shades = (255 * pixels).astype(int) @ [2**16, 2**8, 1]
    self.assertGreater(len(np.unique(shades)), 5)

  @parameterized.parameters('gpu-host-{}.example.com', '$x_{}^', '"{}"\\')
  def test_ids_may_be_long_and_odd(self, name):
    cluster = _rename_nodes(shapes.star([10, 20, 30]), name)
    pixels = _pixels(cluster, topology.pack(cluster))
    self.assertGreater(_count(pixels, 'black'), 100)


class PlacesTest(parameterized.TestCase):
  @parameterized.parameters(
    'full_mesh(12, 1)',
    'star([1, 1, 1, 1])',
    'dgx_a100(2)',
    'dgx_h100(4)',
    'dcell(4, 1, 1)',
    'mi250(2)',
    'fat_tree(4, 1)',
    'torus([4, 4], 1)',
    'torus([8, 8], 1)',
    'random_switched(12, 6, 3)',
    'wan([4, 4, 4], 25, [[3, 4, 1], [7, 8, 1]])',
  )
  def test_nodes_are_apart(self, spec):
    cluster = build_cluster(spec)
    places = placing.places(cluster)
    self.assertCountEqual(places, cluster.nodes)
    points = np.stack([*places.values()])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    apart[np.diag_indices(len(points))] = np.inf
    self.assertGreater(apart.min(), 0.55)  # More than two radii.
    again = placing.places(cluster)
    for node, place in places.items():
      np.testing.assert_array_equal(again[node], place)

  def test_layers_are_rows(self):
    cluster = shapes.tree([2, 3], [4, 1])
    places = placing.places(cluster)
    heights = [places[node][1] for node in cluster.nodes]
    self.assertLen(set(heights), 3)
    self.assertEqual({places[w][1] for w in cluster.workers}, {0.0})
    xs = [places[worker][0] for worker in cluster.workers]
    self.assertEqual(xs, sorted(xs))

  def test_rails_are_below_boxes(self):
    places = placing.places(build_cluster('dgx_a100(2)'))
    heights = [np.sign(places[f's{k}'][1]) for k in range(4)]
    self.assertEqual(heights, [1, 1, -1, -1])

  def test_sites_stay_together(self):
    cluster = shapes.wan([4, 4], 25, [(3, 4, 1)])
    places = placing.places(cluster)
    points = np.stack([places[worker] for worker in cluster.workers])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    self.assertLess(apart[:4, :4].max(), apart[:3, 5:].min())


if __name__ == '__main__':
  absltest.main()
