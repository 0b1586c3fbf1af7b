"""Tests for tools/pack.py and forests.py."""

import json
import pathlib
import re
import tempfile

from absl.testing import absltest, parameterized

import topology
from tests.support import small
from topology.baselines import schemes
from topology.clusters import cluster as clusters
from topology.clusters import shapes
from topology.forests import export, files, timing


def _run(*arguments):
  return small.python('-m', 'tools.pack', *arguments)


def _rows(text):
  """Returns the rows of a table, by their first column."""
  rows = (re.split(r' {2,}', line, maxsplit=1) for line in text.splitlines())
  return {row[0]: row[1] for row in rows if len(row) == 2}


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


class CommandTest(parameterized.TestCase):
  def test_a_builder_is_packed_printed_and_written(self):
    out = _folder() / 'mesh.json'
    line = ('full_mesh(4, 25)', '--collective=allgather', '--baselines')
    done = _run(*line, f'--out={out}')

    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertNotIn('\r', done.stderr)
    rows = _rows(done.stdout)
    expected = {
      'collective': 'allgather',
      'workers': '4',
      'switches': '0',
      'links': '12',
      'rate': '100 GB/s',
      'bound': '100 GB/s',
      'gap': 'none: no forest is faster',
      'trees': '4',
      'hops': '12',
      'largest depth': '1',
    }
    self.assertEqual({key: rows[key] for key in expected}, expected)
    slowest = 'the 75 GB/s out of all workers but w3'
    self.assertIn(slowest, rows['bottleneck'])
    cluster = shapes.full_mesh(4, 25)
    packed = topology.pack(cluster, collective='allgather')
    for name, other in schemes.build_all(cluster, packed).items():
      rate, ratio = map(float, rows[name].split())
      self.assertAlmostEqual(rate, float(other.rate_Bps / 10**9), delta=0.01)
      self.assertAlmostEqual(ratio, 100 / rate, delta=0.01)
    written = json.loads(out.read_text())
    self.assertEqual(export.from_json(written), (cluster, packed))

  def test_a_file_is_packed_and_timed(self):
    cluster = shapes.star([10, 20, 30])
    file = _folder() / 'star.json'
    file.write_text(json.dumps(clusters.to_json(cluster)))
    done = _run(f'{file}', '--size=100MB', '--latency_us=50', '--message_us=2')

    self.assertEqual(done.returncode, 0, done.stderr)
    rows = _rows(done.stdout)
    _, total_s = timing.best_chunk_bytes(
      cluster, topology.pack(cluster), 10**8, latency_s=5e-5, message_s=2e-6
    )
    self.assertEqual(rows['time of 100 MB'], f'{total_s:.4g} s')
    rate = f'{0.1 / total_s:.4g} GB/s'
    self.assertEqual(rows['effective rate'], rate)
    self.assertIn('s0 to w0: the highest price', rows['bottleneck'])

  def test_a_kept_forest_is_drawn_as_it_is(self):
    folder = _folder()
    cluster = shapes.full_mesh(4, 25)
    forest = topology.pack(cluster, max_trees=1)
    file, picture = folder / 'one.json', folder / 'one.svg'
    file.write_text(json.dumps(export.to_json(cluster, forest)))
    done = _run(f'{file}', '--keep', f'--draw={picture}', '--panels=1')

    self.assertEqual(done.returncode, 0, done.stderr)
    rows = _rows(done.stdout)
    self.assertEqual(rows['trees'], f'{len(forest.trees)}')
    self.assertEqual(rows['rate'], f'{float(forest.rate_Bps / 10**9):.4g} GB/s')
    self.assertNotIn('packed in', rows)
    self.assertIn(f'Picture: {picture}', done.stdout)
    self.assertIn('<svg', picture.read_text())

  def test_a_single_worker_has_nothing_to_send(self):
    done = _run('ring(1, 1)', '--baselines', '--size=1MB')
    self.assertEqual(done.returncode, 0, done.stderr)
    rows = _rows(done.stdout)
    self.assertEqual(rows['rate'], 'none: a single worker has nothing to send')
    self.assertEqual(rows['time of 1 MB'], '0 s')

  @parameterized.parameters(
    ('nosuch(4)', r"Refused: Expected one of .* got 'nosuch'"),
    ('full_mesh(0, 1)', r'Refused: full_mesh: workers: expected'),
    ('nothing.json', r"Refused: .*No such file .*'nothing.json'"),
    ('ring(4, 1) --size=3Q', r"Refused: size: expected bytes, .*got '3Q'"),
    ('ring(4, 1) --latency_us=5', r'Refused: latency_us: .* --size, got 5.0'),
    ('ring(4, 1) --size=1B --latency_us=-1', r'Refused: latency_s: expected'),
    ('ring(4, 1) --out=/no/such/file', r'Refused: out: expected a file in'),
    (
      'ring(4, 1) --draw=a.nosuch',
      r'Refused: draw: expected .*png',
    ),
    ('ring(4, 1) --panels=-1', r'Refused: panels: expected at least 0, got -1'),
    ('ring(4, 1) --keep', r"Refused: .*No such file .*'ring\(4, 1\)'"),
    ('ring(4, 1) --gap=-1', r'Refused: gap: expected'),
    ('ring(4, 1) --collective=sum', r'collective'),
    ('ring(4, 1) another', r'Expected a file or a builder'),
  )
  def test_bad_input_is_named(self, line, message):
    spec, *others = re.split(r' (?=--|another)', line)
    done = _run(spec, *others)
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stdout + done.stderr, message)
    self.assertNotIn('Traceback', done.stderr)


class ReadTest(parameterized.TestCase):
  def _file(self, text):
    file = _folder() / 'it.json'
    file.write_text(text)
    return file

  def test_a_forest_is_read_and_its_cluster_for_packing(self):
    cluster = shapes.full_mesh(3, 25)
    packed = topology.pack(cluster)
    file = self._file(json.dumps(export.to_json(cluster, packed)))
    self.assertEqual(files.read(file), (cluster, packed))
    self.assertEqual(files.read_cluster(str(file)), cluster)

  def test_a_file_may_be_named_like_a_call(self):
    cluster = shapes.full_mesh(3, 25)
    file = _folder() / 'ring(4, 1)'
    file.write_text(json.dumps(clusters.to_json(cluster)))
    self.assertEqual(files.read_cluster(str(file)), cluster)
    self.assertLen(files.read_cluster('ring(4, 1)').workers, 4)

  @parameterized.parameters(
    ('{', r'it.json: expected JSON, got '),
    ('[]', r'it.json: expected a JSON object, got \[\]'),
    ('{"a": 1}', r"it.json: nodes: expected a cluster or .* got \['a'\]"),
    ('{"nodes": 1, "links": []}', r'it.json: '),
    ('{"nodes": []}', r"it.json: .*'links'"),
    ('{"format": "other"}', r'it.json: format: expected'),
    ('\xff', r'it.json: '),
  )
  def test_a_broken_file_is_named(self, text, message):
    file = _folder() / 'it.json'
    file.write_bytes(text.encode('latin-1'))
    with self.assertRaisesRegex(ValueError, message):
      files.read(file)


if __name__ == '__main__':
  absltest.main()
