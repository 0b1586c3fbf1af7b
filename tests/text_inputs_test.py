"""Tests of text files with a byte order mark, as some editors write it."""

import codecs
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from analysis import iterations, runs
from cluster.speed import traces
from configs import sections
from topology.clusters import cluster
from topology.clusters.builders import build_cluster
from topology.forests import files
from tuning import clusters

_CLUSTER = json.dumps(cluster.to_json(build_cluster('star([1, 2])')))
_TRACE = 'worker,time,s\n0,0,1.5\n0,1,2.5\n1,0,3.5\n'
_COLUMNS = {
  'worker_column': 'worker',
  'order_column': 'time',
  'value_column': 's',
}
_STEPS = 'worker,iteration,compute_s,sync_s\na,0,1,2\nb,0,2,1\n'


_ADVISED = json.dumps(
  {
    'workers': 2,
    'speed': {'slowdown': [1, 2]},
    'network': {'worker_up_Bps': [1e9], 'worker_down_Bps': [1e9]},
  }
)


def _read_workers(path):
  return clusters.read(str(path)).workers


def _read_trace(path):
  return traces.rows(str(path), [], **_COLUMNS)


def _read_steps(path):
  found, workers = iterations.read_csv(path)
  return found.compute_s.tolist(), workers.names


def _read_json(path):
  return sections.read_json('config.batching.lb_bsp_gpu.curves', 'x', str(path))


class ByteOrderMarkTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('traces', _read_trace, _TRACE, '.csv'),
    ('steps', _read_steps, _STEPS, '.csv'),
    ('curves_and_layers', _read_json, '{"layers": [1, 2]}', '.json'),
    ('clusters', lambda p: files.read(p)[0], _CLUSTER, '.json'),
    ('advice', _read_workers, _ADVISED, '.json'),
    ('rows', runs.read_objects, '{"a": 1}\n{"a": 2}\n', '.jsonl'),
    ('object', runs.read_objects, '{"a": 1}\n', '.json'),
  )
  def test_it_is_no_part_of_a_file(self, read, text, suffix):
    path = pathlib.Path(tempfile.mkdtemp(), f'file{suffix}')
    path.write_text(text, encoding='utf-8')
    expected = read(path)
    path.write_bytes(codecs.BOM_UTF8 + text.encode())
    self.assertEqual(read(path), expected)


if __name__ == '__main__':
  absltest.main()
