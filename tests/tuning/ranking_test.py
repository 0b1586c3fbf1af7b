"""Tests for rankings of combinations on described clusters."""

import json
import pathlib
import re
import tempfile

from absl.testing import absltest, parameterized

from tests.support import small
from tuning import clusters, problem, ranking, simulating
from tuning.combinations import BSP, Combination
from tuning.examples import ExamplesRatio, Learning

_SPEED = {'name': 'constant', 'fixed_s': 0.02, 'per_example_s': 0.0025}
_BATCH = 32
_COMPUTE_S = 0.02 + 32 * 0.0025
_FAST = [1.25e12]
_LINKS = ('worker_up_Bps', 'worker_down_Bps')
_FEW = (
  BSP,
  BSP._replace(batching='lb_bsp'),
  BSP._replace(route='ring'),
  BSP._replace(route='forest'),
  BSP._replace(route='ring', dtype='bfloat16'),
  Combination('asp'),
  Combination('elastic'),
)


def _data(slowdown=(1.0,), rates=_FAST, **others):
  network = dict.fromkeys(_LINKS, rates)
  speed = {**_SPEED, 'slowdown': list(slowdown)}
  return {'workers': 8, 'speed': speed, 'network': network} | others


def _file(data):
  path = pathlib.Path(tempfile.mkdtemp()) / 'cluster.json'
  path.write_text(data if isinstance(data, str) else json.dumps(data))
  return str(path)


def _advise(size_bytes=8_000_000, few=_FEW, local_steps=1, **data):
  """Returns advice, as if all needed as many examples as BSP."""
  cluster = clusters.read(_file(_data(**data)))
  workload = simulating.Workload(size_bytes, _BATCH, local_steps)
  return ranking.advise(cluster, workload, _equal(few), choices=few)


def _equal(few, staleness=8.0):
  """Returns ratios with which all need as many examples as BSP."""
  ratio = ExamplesRatio(1.0, 0.9, 1.1, 6, staleness)
  return {Learning(*each[:3]): ratio for each in few}


class PlantedTest(absltest.TestCase):
  """Tests on clusters with a known best combination."""

  def test_equal_workers_and_fast_links_have_nothing_to_gain(self):
    advice = _advise()
    self.assertEqual(advice.best.combination, BSP)
    # Nobody waits, and 8 MB travel for about 0.01 ms.  Links have 0.1 ms: two
    # for a pull and two for a push, or for each of 14 steps among workers.
    for row in advice.rows:
      steps = 2 if row.combination.route == 'server' else 14
      iteration_s = 8 * _BATCH / row.pace.examples_per_s
      expected_s = _COMPUTE_S + steps * 2e-4
      self.assertAlmostEqual(iteration_s, expected_s, delta=3e-5)
    self.assertEqual(advice.iteration.limit, 'computing')
    self.assertIn('there is nothing to gain', ranking.explain(advice))

  def test_a_slow_worker_has_others_wait(self):
    advice = _advise(slowdown=[1.0] * 7 + [10.0])
    best = advice.best.combination
    self.assertIn(best.sync, ('asp', 'elastic'))
    # Sum of all speeds over the speed of all at the slowest pace, but for the
    # share of transfers in an iteration of the fastest, and for a push of the
    # slow worker more or less in what is measured.
    why = advice.iteration
    gain = 7.1 / 0.8
    share = why.links_s / _COMPUTE_S
    self.assertLess(share, 0.005)
    self.assertAlmostEqual(1 / advice.best.time, gain, delta=0.01 * gain)
    mean_s = _COMPUTE_S * 17 / 8
    self.assertAlmostEqual(why.compute_s, mean_s)
    self.assertAlmostEqual(why.waiting_s, 10 * _COMPUTE_S - mean_s)
    said = ranking.explain(advice)
    self.assertIn('slowest worker (7)', said)
    self.assertIn('it is limited by waiting', said)
    self.assertIn('--config.sync.name=' + best.sync, said)
    order = [row.combination for row in advice.rows]
    balanced = BSP._replace(batching='lb_bsp')
    self.assertLess(order.index(balanced), order.index(BSP))

  def test_a_thin_link_wants_a_forest(self):
    rates = [1.25e8] * 7 + [1.25e7]
    few = [each for each in _FEW if each.dtype == 'float32']
    advice = _advise(rates=rates, size_bytes=40_000_000, few=few)
    self.assertEqual(advice.best.combination, BSP._replace(route='forest'))
    # All bytes cross the thin link, once each way; in a ring 14 / 8 of them.
    rows = {row.combination: row for row in advice.rows}
    forest, ring = (
      8 * _BATCH / rows[BSP._replace(route=route)].pace.examples_per_s
      for route in ('forest', 'ring')
    )
    # Sums begin while the gradient is computed.
    for found, least_s in ((forest, 40 / 12.5), (ring, 40 / 12.5 * 14 / 8)):
      self.assertBetween(found, least_s, least_s + _COMPUTE_S)
    said = ranking.explain(advice)
    self.assertIn('limited by links', said)
    self.assertIn("links (worker 7's is the thinnest)", said)

  def test_thin_links_of_all_want_half_of_the_bytes(self):
    few = (BSP, BSP._replace(route='ring'), _FEW[4])
    advice = _advise(rates=[1.25e7], few=few)
    self.assertEqual(advice.best.combination, _FEW[4])

  def test_with_many_workers_what_cannot_be_advised_is_not_simulated(self):
    pipelined = BSP._replace(pipelined=True)
    few = (BSP, pipelined, BSP._replace(route='ring'), Combination('asp'))
    advice = _advise(few=few, workers=33, rates=[1.25e8])
    self.assertEqual(set(advice.omitted), {pipelined, few[3]})
    self.assertIn('about 32 updates stale', advice.omitted[few[3]])
    self.assertIn('Not simulated: asp', ranking.table(advice))
    # 8 servers send 33 times the bytes each way, a ring about twice.
    rows = {row.combination: row.speed for row in advice.rows}
    self.assertGreater(rows[few[2]], 2)

  def test_links_among_workers_leave_servers_out(self):
    spec = 'star([1, 1, 1, 1, 1, 1, 1, 0.0125])'
    few = [BSP, Combination('asp'), *_FEW[2:4]]
    advice = _advise(size_bytes=40_000_000, few=few, links=spec, network={})
    self.assertEqual(advice.base.combination, BSP._replace(route='ring'))
    self.assertEqual(advice.best.combination, BSP._replace(route='forest'))
    self.assertLen(advice.rows, 2)
    # 3.2 s and 5.6 s of transfers, each with a part of the computing.
    low, high = 3.2 / (5.6 + _COMPUTE_S), (3.2 + _COMPUTE_S) / 5.6
    self.assertBetween(advice.best.time, low, high)
    self.assertEqual(advice.iteration.limit, 'links')

  def test_servers_of_their_own_are_named(self):
    network = dict.fromkeys(_LINKS, _FAST)
    network |= {'server_up_Bps': [1.25e8], 'server_down_Bps': [1.25e8]}
    advice = _advise(network=network, few=(BSP, Combination('asp')))
    # 8 MB of 8 workers go in and out over the only link.
    whole_s = 8 * _BATCH / advice.base.pace.examples_per_s
    # 0.1 ms on each of the links of a pull and of a push.
    self.assertAlmostEqual(whole_s, _COMPUTE_S + 128 / 125 + 4e-4, delta=1e-4)
    self.assertIn("links (the servers')", ranking.explain(advice))


class LocalTest(absltest.TestCase):
  """Tests of islands and of local steps."""

  def _iteration_s(self, row, steps=1):
    return 8 * _BATCH * steps / row.pace.examples_per_s

  def test_groups_of_fast_links_are_advised_as_islands(self):
    # Two racks of 4 hosts with 1 GB/s, and 12.5 MB/s for each rack.
    spec = 'tree([2, 4], [0.0125, 1])'
    ring = BSP._replace(route='ring')
    network = {'worker_latency_s': [0.0]}
    advice = _advise(
      size_bytes=40_000_000, few=(ring, BSP), links=spec, network=network
    )
    island = ring._replace(hosts=4)
    self.assertEqual(advice.best.combination, island)
    rows = {row.combination: row for row in advice.rows}
    # Rings: 14 / 8 of the bytes leave a rack, or all of them.  Inside, two
    # allreduces of 6 / 4 of the bytes.
    # Those of all begin while the gradient is computed.
    ring_s = 40 / 12.5 * 14 / 8
    found = self._iteration_s(rows[ring])
    self.assertBetween(found, ring_s, ring_s + _COMPUTE_S)
    self.assertAlmostEqual(
      self._iteration_s(rows[island]),
      _COMPUTE_S + 2 * 6 / 4 * 0.04 + 40 / 12.5,
    )
    said = ranking.explain(advice)
    self.assertIn('--config.cluster.hosts_per_worker=4', said)
    self.assertIn('--config.cluster.workers=2', said)
    self.assertIn('ring, islands of 4', ranking.table(advice))

  def test_groups_of_unequal_sizes_are_no_islands(self):
    ring = BSP._replace(route='ring')
    text = {
      'nodes': [
        *({'id': f'w{i}', 'worker': True} for i in range(8)),
        *({'id': f's{i}', 'worker': False} for i in range(2)),
      ],
      'links': [
        {'src': src, 'dst': dst, 'GBps': GBps}
        for a, b, GBps in [
          *((f'w{i}', f's{i // 5}', 1) for i in range(8)),
          ('s0', 's1', 0.01),
        ]
        for src, dst in ((a, b), (b, a))
      ],
    }
    links = _file(json.dumps(text))
    advice = _advise(few=(ring,), links=links, network={})
    self.assertLen(advice.rows, 1)

  def test_fragments_hide_sums_behind_local_steps(self):
    ring = BSP._replace(route='ring')
    advice = _advise(
      size_bytes=40_000_000,
      few=(BSP, ring, Combination('asp')),
      rates=[1.25e8],
      local_steps=16,
    )
    local = ring._replace(local_steps=16)
    rows = {row.combination: row for row in advice.rows}
    self.assertEqual(
      {*rows},
      {
        local._replace(route='server'),
        *(local._replace(fragments=count) for count in (1, 2, 4, 8)),
      },
    )
    compute_s = 0.02 + 16 * 32 * 0.0025
    transfer_s = 40 / 125 * 14 / 8
    self.assertAlmostEqual(
      self._iteration_s(rows[local], 16), compute_s + transfer_s, delta=1e-3
    )
    # An iteration of a fragment has its own fixed time.
    halves = rows[local._replace(fragments=2)]
    self.assertAlmostEqual(
      self._iteration_s(halves, 16), compute_s + 0.02, delta=1e-3
    )
    self.assertEqual(advice.best.combination, halves.combination)
    said = ranking.explain(advice)
    self.assertIn('--config.batching.local_steps=16', said)
    self.assertIn('--config.route.fragments=2', said)
    self.assertIn('--config.route.overlap_steps=8', said)


class RankingTest(absltest.TestCase):
  def _row(self, combination, speed, needed, staleness=0.0):
    pace = simulating.Pace(100 * speed, staleness, 0.1)
    return ranking.RankedCombination(combination, pace, needed, speed)

  def test_time_is_examples_over_speed_and_fewer_count_as_one(self):
    more = ExamplesRatio(1.5, 1.0, 2.0, 6, 7.0)
    fewer = more._replace(median=0.8)
    self.assertEqual(self._row(BSP, 3.0, more).time, 0.5)
    self.assertEqual(self._row(BSP, 2.0, fewer).time, 0.5)

  def test_staler_combinations_than_measured_are_not_advised(self):
    few = BSP, Combination('asp')
    data = _data(slowdown=[1.0] * 7 + [10.0])
    cluster = clusters.read(_file(data))
    workload = simulating.Workload(8_000_000, _BATCH)
    for ratios, known in ((_equal(few, 0.1), 'measured 1.00'), ({}, 'not kno')):
      advice = ranking.advise(cluster, workload, ratios, choices=few)
      self.assertEqual(advice.rows[0].combination.sync, 'asp')
      self.assertEqual(advice.best.combination, BSP)
      self.assertIn('* How many examples', ranking.table(advice))
      text = ranking.explain(advice)
      self.assertRegex(text, f'asp, fixed, float32, server is .*{known}')

  def test_without_runs_only_learning_as_before_has_a_time(self):
    few = BSP, BSP._replace(batching='lb_bsp'), Combination('asp')
    cluster = clusters.read(_file(_data(slowdown=[1.0] * 7 + [10.0])))
    workload = simulating.Workload(8_000_000, _BATCH)
    advice = ranking.advise(cluster, workload, {}, choices=few)
    self.assertEqual(advice.best.combination, few[1])
    self.assertIn('--examples_from=SWEEP', ranking.explain(advice))
    (row,) = (each for each in advice.rows if each.combination == few[2])
    self.assertFalse(row.needed.is_known)


class FileTest(parameterized.TestCase):
  @parameterized.parameters(
    ('{', r'cluster.json: expected JSON'),
    ('[]', r'cluster.json: expected a JSON object, got \[\]'),
    ({'hosts': 1}, r"expected fields among .*, got 'hosts'"),
    (_data(workers='two'), r"workers: expected an integer .* got 'two'"),
    (_data(speed={}), r'speed.slowdown: expected .* got None'),
    (_data(links=3), r'links: expected a file of nodes'),
    (_data() | {'network': {}}, r'network.worker_up_Bps: expected bytes'),
    (
      _data() | {'network': {'worker_up_Bps': [1e9]}},
      r'network.worker_down_Bps: expected bytes per second, .* got None',
    ),
    (
      _data() | {'network': {**_data()['network'], 'server_up_Bps': [1e9]}},
      r'network.server_down_Bps: expected',
    ),
    (
      _data() | {'network': {**_data()['network'], 'worker_Bps': [1e9]}},
      r"network.worker_Bps: expected one of .* got 'worker_Bps'",
    ),
    (_data(slowdown='x'), r'speed.slowdown: expected a list of numbers'),
  )
  def test_wrong_fields_are_named(self, data, message):
    with self.assertRaisesRegex(ValueError, message):
      clusters.read(_file(data))

  @parameterized.parameters(
    (_data(slowdown=[1.0] * 3), r'slowdown: .*8'),
    (_data(rates=[1e9] * 3), r'worker_up_Bps: expected one value .* of 8'),
    (_data(rates=[0.0]), r'worker_up_Bps: expected .* above 0'),
  )
  def test_inconsistent_fields_are_named_before_anything_runs(
    self, data, message
  ):
    with self.assertRaisesRegex(ValueError, message):
      self._advise(data)

  def test_unknown_nodes_are_named(self):
    nodes = [{'id': f'w{i}', 'worker': True} for i in range(8)]
    links = [{'src': 'w0', 'dst': 'w9', 'GBps': 1}]
    text = json.dumps({'nodes': nodes, 'links': links})
    data = _data(links=_file(text))
    data['network'] = {}
    with self.assertRaisesRegex(ValueError, 'w9'):
      self._advise(data)

  def _advise(self, data):
    cluster = clusters.read(_file(data))
    ranking.advise(cluster, simulating.Workload(4, 1), {}, choices=_FEW)


class CommandTest(absltest.TestCase):
  def test_models_have_the_bytes_of_their_layers(self):
    blocks = (64, 2), (128, 2), (256, 3), (512, 3), (512, 3)
    before, total = 3, 0
    for width, count in blocks:
      for _ in range(count):
        total += 9 * before * width + width
        before = width
    for width, count in ((7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)):
      total += width * count + count
    self.assertEqual(problem.size_bytes('vgg16'), 4 * total)
    self.assertEqual(problem.size_bytes('10MB'), 10**7)
    with self.assertRaisesRegex(ValueError, "model: .*got 'vgg99'"):
      problem.size_bytes('vgg99')

  def test_a_bad_file_is_refused(self):
    file = _file('[]')
    words = ('--dry_run', '--model=vgg16', f'--cluster={file}')
    done = small.python('-m', 'tools.tune', *words)
    self.assertEqual(done.returncode, 1)
    expected = re.escape(f'Refused: {file}: expected a JSON object')
    self.assertRegex(done.stderr, expected)


if __name__ == '__main__':
  absltest.main()
