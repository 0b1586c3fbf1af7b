"""Tests of figures: what their lines, bars and texts show."""

import json
import pathlib
import tempfile

import matplotlib
import numpy as np
from absl.testing import absltest, parameterized
from matplotlib import text

import topology
from analysis.figures import curves, forest, links, look, positions, workers
from analysis.figures.curves import Curve
from topology.clusters import cluster as clusters
from topology.clusters import shapes
from topology.clusters.builders import build_cluster


def _legend(figure):
  (legend,) = figure.legends
  return [entry.get_text() for entry in legend.get_texts()]


def _curve(*points):
  return Curve(*np.array(points, float).T)


def _timeline(count, total=None):
  """Workers that compute and wait alternately, from 0 to 10 s."""
  shape = (count, 10, 2)
  worker, second, part = np.indices(shape).reshape(3, -1)
  return workers.Timeline(
    worker=worker,
    phase=np.array(['compute', 'wait'])[part],
    start=second + 0.5 * part,
    end=second + 0.5 * part + 0.5,
    barriers=[1.0, 5.0, 9.0],
    window=(4.25, 7.0),
    workers=range(count),
    total=total or count,
  )


class CurvesTest(parameterized.TestCase):
  def test_the_mean_and_range_are_of_the_lines_where_all_are(self):
    seeds = [
      _curve((0, 0), (2, 2), (4, 4)),
      _curve((1, 7), (3, 9)),
      _curve((0, 5), (10, 5)),
    ]
    found = curves.spread(seeds)
    np.testing.assert_array_equal(found.x, [1, 2, 3])
    np.testing.assert_allclose(found.mean, [13 / 3, 5, 17 / 3])
    np.testing.assert_array_equal(found.low, [1, 2, 3])
    np.testing.assert_array_equal(found.high, [7, 8, 9])

  def test_a_line_is_the_mean_and_a_band_the_range_of_the_seeds(self):
    seeds = [_curve((0, 0.2), (4, 0.6)), _curve((0, 0.4), (4, 0.8))]
    alone = [_curve((0, 0.1), (8, 0.9))]
    figure = curves.draw_curves(
      {'two': seeds, 'one': alone},
      xlabel='virtual time (s)',
      ylabel='test accuracy',
      in_percent=True,
    )
    (axes,) = figure.axes
    self.assertEqual(axes.get_xlabel(), 'virtual time (s)')
    self.assertEqual(axes.get_ylabel(), 'test accuracy (%)')
    first, second = axes.lines
    np.testing.assert_allclose(first.get_xydata(), [[0, 30], [4, 70]])
    np.testing.assert_allclose(second.get_xydata(), [[0, 10], [8, 90]])
    (band,) = axes.collections
    (edges,) = band.get_paths()
    self.assertEqual(edges.get_extents().bounds, (0, 20, 4, 60))
    self.assertEqual(_legend(figure), ['two', 'one'])
    self.assertEqual(
      figure.legends[0].get_title().get_text(), 'mean and range of the seeds'
    )

  def test_seeds_without_a_common_time_are_drawn_as_they_are(self):
    seeds = [_curve((1, 0.5)), _curve((2, 0.6))]
    figure = curves.draw_curves({'a': seeds}, xlabel='x', ylabel='y')
    lines = [line.get_xydata().tolist() for line in figure.axes[0].lines]
    self.assertEqual(lines, [[[1, 0.5]], [[2, 0.6]]])
    self.assertEqual(_legend(figure), ['a'])

  def test_one_evaluation_is_a_marker(self):
    figure = curves.draw_curves(
      {'a': [_curve((3, 0.5))]}, xlabel='x', ylabel='y'
    )
    (line,) = figure.axes[0].lines
    self.assertEqual(line.get_xydata().tolist(), [[3, 0.5]])
    self.assertNotIn(line.get_marker(), ('', 'None', None))

  def test_one_curve_is_shown_whole_and_several_from_their_limit(self):
    x = np.arange(10.0)
    found = {
      str(last): [Curve(x, np.minimum(x / 5, last))] for last in (0.9, 0.95)
    }
    for count, floor in ((1, 0.0), (2, 88.0)):
      shown = dict(list(found.items())[:count])
      figure = curves.draw_curves(
        shown, xlabel='x', ylabel='y', in_percent=True
      )
      self.assertAlmostEqual(figure.axes[0].get_ylim()[0], floor)

  def test_lines_differ_without_their_colors(self):
    looks = [look.line(index) for index in range(len(look.COLORS))]
    plain = {(str(each['linestyle']), each['marker']) for each in looks}
    self.assertLen(plain, len(looks))

  def test_distributions_are_shares_of_values_that_are_no_larger(self):
    counts = np.array([0.0, 1.0, 3.0]), np.array([5, 4, 1])
    figure = curves.draw_distributions(
      {'bsp': (np.zeros(1), np.ones(1)), 'asp': counts}, xlabel='x', ylabel='y'
    )
    (axes,) = figure.axes
    x, y = axes.lines[1].get_data()
    for value, share in ((0, 50), (1, 90), (2, 90), (3, 100)):
      place = np.searchsorted(x, value, 'right') - 1
      self.assertAlmostEqual(y[place], share)
    # The line of a single value goes on to the edge.
    self.assertGreaterEqual(axes.lines[0].get_xdata()[-1], axes.get_xlim()[1])
    self.assertEqual(_legend(figure), ['bsp (mean 0)', 'asp (mean 0.7)'])

  def test_speed_ups_have_the_ideal_line(self):
    figure = curves.draw_speed_ups({'a': {1: [1.0], 4: [3.0, 2.0]}})
    mean, *_, ideal = figure.axes[0].lines
    np.testing.assert_allclose(mean.get_ydata(), [1.0, 2.5])
    np.testing.assert_array_equal(ideal.get_xdata(), ideal.get_ydata())


class WorkersTest(parameterized.TestCase):
  @parameterized.parameters(1, 4, 64)
  def test_a_timeline_has_a_row_for_each_worker_within_the_window(self, count):
    figure = workers.draw_timelines(
      {'a': _timeline(count)}, xlabel='virtual time (s)'
    )
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if bar.get_width()]
    spent = np.zeros(count)
    for bar in bars:
      spent[round(bar.get_y() + bar.get_height() / 2)] += bar.get_width()
      self.assertGreaterEqual(bar.get_x(), 4.25)
      self.assertLessEqual(bar.get_x() + bar.get_width(), 7.0)
    np.testing.assert_allclose(spent, 2.75)
    heights = {bar.get_facecolor(): round(bar.get_height(), 6) for bar in bars}
    self.assertLen({*heights.values()}, 2)  # Phases differ in greys, too.
    (barriers,) = axes.collections
    self.assertLen(barriers.get_segments(), 1)
    self.assertContainsSubset({'compute', 'wait', 'barrier'}, _legend(figure))
    self.assertEqual(axes.get_ylabel(), 'worker')

  def test_a_timeline_says_how_many_workers_it_leaves_out(self):
    figure = workers.draw_timelines(
      {'a': _timeline(4, total=200)}, xlabel='time (s)'
    )
    self.assertEqual(figure.axes[0].get_ylabel(), 'worker (4 of 200)')

  def test_several_timelines_have_titles(self):
    both = {'bsp': _timeline(2), 'asp': _timeline(2)}
    figure = workers.draw_timelines(both, xlabel='time (s)')
    titles = [axes.get_title(loc='left') for axes in figure.axes]
    self.assertEqual(titles, ['bsp', 'asp'])

  def test_bars_are_shares_of_the_time(self):
    figure = workers.draw_shares(
      {'a': {'compute': 3.0, 'wait': 1.0}, 'b': {'compute': 8.0}}
    )
    (axes,) = figure.axes
    found = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    self.assertEqual(found, [(0, 75), (0, 100), (75, 25), (100, 0)])
    shown = [each.get_text() for each in axes.texts]
    self.assertEqual(shown, ['a', 'b', '25.0% waiting', '0.0% waiting'])

  def test_labels_of_bars_are_wrapped_and_do_not_overlap(self):
    long = ', '.join(f'field_{k}=value' for k in range(6))
    figure = workers.draw_shares({long: {'wait': 1.0}, f'{long}.': {'wait': 2}})
    figure.draw_without_rendering()
    boxes = [
      each.get_window_extent()
      for each in (*figure.axes[0].texts[:2], *figure.axes[0].patches)
    ]
    width = figure.get_window_extent().width
    for number, box in enumerate(boxes):
      self.assertLessEqual(box.x1, width)
      for other in boxes[number + 1 :]:
        self.assertFalse(box.shrunk(0.98, 0.9).overlaps(other))

  def test_the_breakdown_has_medians_and_95th_percentiles(self):
    figure = workers.draw_breakdown({'a': {'compute': (0.2, 0.3)}})
    (axes,) = figure.axes
    (bar,) = axes.patches
    self.assertEqual(bar.get_width(), 0.2)
    (line,) = axes.collections
    self.assertEqual(line.get_segments()[0][:, 0].tolist(), [0.2, 0.3])
    self.assertEqual(_legend(figure), ['compute'])

  def test_batches_of_some_workers_are_shown(self):
    found = {k: (np.arange(3.0), np.full(3, k + 1)) for k in range(20)}
    figure = workers.draw_batches(found, xlabel='virtual time (s)')
    shown = [line.get_ydata()[0] for line in figure.axes[0].lines]
    self.assertEqual((shown[0], shown[-1]), (1, 20))
    self.assertEqual(
      figure.legends[0].get_title().get_text(), f'{len(shown)} of 20 workers'
    )


class LinksTest(absltest.TestCase):
  def test_bars_are_measured_and_marks_planned_rates(self):
    figure = links.draw_links(
      ['0 to 1', '1 to 0'], [5e6, 10e6], [10e6, 10e6], count=6
    )
    (axes,) = figure.axes
    self.assertEqual([bar.get_width() for bar in axes.patches], [5, 10])
    self.assertEqual(axes.lines[0].get_xdata().tolist(), [10, 10])
    shown = [each.get_text().strip() for each in axes.texts]
    self.assertEqual(shown, ['50%', '100%'])
    self.assertIn('(MB/s)', axes.get_xlabel())
    self.assertIn('2 slowest of 6', axes.get_ylabel())


def _rename_nodes(cluster, name):
  """Returns the cluster with other names of nodes."""
  found = json.dumps(clusters.to_json(cluster))
  for number, node in enumerate(cluster.nodes):
    found = found.replace(f'"{node}"', json.dumps(name.format(number)))
  return clusters.from_json(json.loads(found))


class ForestTest(parameterized.TestCase):
  def test_an_allreduce_has_its_rate_and_a_panel_for_each_tree(self):
    cluster = build_cluster('dgx_a100(1)')
    packed = topology.pack(cluster)
    figure = forest.draw_forest(cluster, packed, trees=2)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    self.assertLen(titles, 2)
    heaviest = max(packed.trees, key=lambda tree: tree.weight_Bps)
    self.assertIn(f'root {heaviest.root}', titles[0])
    note = ' '.join(figure.texts[0].get_text().split())
    self.assertIn(f'{float(packed.rate_Bps) / 1e9:.4g} GB/s', note)
    shown = _legend(figure)
    self.assertContainsSubset(
      {'worker', 'switch', 'sums, to the root', 'results, from the root'},
      shown,
    )
    self.assertLen([each for each in shown if each.endswith('GB/s')], 1)

  def test_an_allgather_has_no_sums_and_a_bottleneck(self):
    cluster = shapes.star([10, 20, 30], [5, 6, 7])
    packed = topology.pack(cluster, collective='allgather')
    shown = _legend(forest.draw_forest(cluster, packed))
    self.assertNotIn('sums, to the root', shown)
    self.assertIn('bottleneck: slowest cut', shown)
    self.assertContainsSubset({'5 GB/s', '30 GB/s'}, shown)

  @parameterized.parameters(
    'ring(1, 1)',
    'line(3, 1)',
    'fat_tree(4, 1)',
    'random_mesh(64, 1)',
    'tree([8, 8, 4], [8, 4, 1])',
  )
  def test_a_cluster_is_drawn_alone(self, spec):
    cluster = build_cluster(spec)
    figure = forest.draw_forest(cluster)
    found = [line for axes in figure.axes for line in axes.lines]
    self.assertLen(found, len(cluster.nodes))

  def test_traffic_has_a_color_for_each_ratio_and_numbers_of_workers(self):
    cluster = shapes.ring(3, 1)
    packed = topology.pack(cluster)
    ids = cluster.workers
    traffic = {
      (ids[0], ids[1]): forest.TrafficLink(100, 0.5),
      (ids[1], ids[0]): forest.TrafficLink(100, 1.0),
      (ids[1], ids[2]): forest.TrafficLink(100, None),
    }
    figure = forest.draw_traffic(
      traffic,
      cluster,
      packed,
      workers={node: k for k, node in enumerate(ids)},
      note='9 iterations',
    )
    lines = figure.axes[0].collections[0]
    self.assertLen(np.unique(lines.get_colors(), axis=0), 3)
    shown = {each.get_text() for each in figure.axes[0].texts}
    self.assertEqual(shown, {'0', '1', '2'})

  @parameterized.parameters('gpu-host-{}.example.com', '$x_{}^', '"{}"\\')
  def test_ids_may_be_long_and_odd(self, name):
    cluster = _rename_nodes(shapes.star([10, 20, 30]), name)
    figure = forest.draw_forest(cluster, topology.pack(cluster))
    self.assertIn('<svg', look.svg(figure))


class PositionsTest(parameterized.TestCase):
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
    places = positions.find(cluster)
    self.assertCountEqual(places, cluster.nodes)
    points = np.stack([*places.values()])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    apart[np.diag_indices(len(points))] = np.inf
    self.assertGreater(apart.min(), 0.55)  # More than two radii.
    again = positions.find(cluster)
    for node, place in places.items():
      np.testing.assert_array_equal(again[node], place)

  def test_layers_are_rows(self):
    cluster = shapes.tree([2, 3], [4, 1])
    places = positions.find(cluster)
    heights = [places[node][1] for node in cluster.nodes]
    self.assertLen(set(heights), 3)
    self.assertEqual({places[w][1] for w in cluster.workers}, {0.0})
    xs = [places[worker][0] for worker in cluster.workers]
    self.assertEqual(xs, sorted(xs))

  def test_rails_are_below_boxes(self):
    places = positions.find(build_cluster('dgx_a100(2)'))
    heights = [np.sign(places[f's{k}'][1]) for k in range(4)]
    self.assertEqual(heights, [1, 1, -1, -1])

  def test_sites_stay_together(self):
    cluster = shapes.wan([4, 4], 25, [(3, 4, 1)])
    places = positions.find(cluster)
    points = np.stack([places[worker] for worker in cluster.workers])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    self.assertLess(apart[:4, :4].max(), apart[:3, 5:].min())


class ColumnTest(absltest.TestCase):
  def test_figures_fit_a_column_with_readable_fonts(self):
    long = 'elastic, slowdown=(1,1,1.5,2), learning_rate=0.05'
    groups = {long: [_curve((0, 0), (9, 1))], 'bsp': [_curve((0, 0), (9, 1))]}
    cluster = shapes.star([10, 20, 30], [5, 6, 7])
    for figure in (
      curves.draw_curves(groups, xlabel='virtual time (s)', ylabel='accuracy'),
      workers.draw_timelines({'a': _timeline(64)}, xlabel='virtual time (s)'),
      workers.draw_shares({long: {'wait': 1.0}}),
      links.draw_links(['0 to 1'], [1e6], [2e6], count=9),
      forest.draw_forest(cluster, topology.pack(cluster)),
    ):
      self.assertAlmostEqual(figure.get_figwidth(), 3.3)
      figure.draw_without_rendering()
      whole = figure.get_window_extent()
      for each in figure.findobj(text.Text):
        if each.get_text().strip() and each.get_visible():
          self.assertGreaterEqual(each.get_fontsize(), 7.0)
      for legend in figure.legends:
        box = legend.get_window_extent()
        self.assertGreaterEqual(box.x0, -1)
        self.assertLessEqual(box.x1, whole.x1 + 1)
        for axes in figure.axes:
          self.assertFalse(box.shrunk(1, 0.9).overlaps(axes.bbox))

  def test_each_format_is_written_and_equal_figures_give_equal_files(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    begins = {'png': b'\x89PNG', 'svg': b'<?xml', 'pdf': b'%PDF'}
    for kind in look.FORMATS:
      for name in ('a', 'b'):
        figure = workers.draw_shares({'a': {'wait': 1.0}})
        look.save(figure, folder / f'{name}.{kind}')
      first, second = (folder / f'{name}.{kind}' for name in 'ab')
      self.assertStartsWith(first.read_bytes(), begins[kind])
      self.assertEqual(first.read_bytes(), second.read_bytes())

  def test_the_style_of_other_figures_stays(self):
    before = dict(matplotlib.rcParams)
    workers.draw_shares({'a': {'wait': 1.0}})
    self.assertEqual(dict(matplotlib.rcParams), before)


if __name__ == '__main__':
  absltest.main()
