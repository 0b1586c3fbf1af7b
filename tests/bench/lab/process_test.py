"""Tests for bench.lab.process: one process in the conditions of a lab."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

import train
from bench.lab import process
from bench.lab.conditions import Condition
from cluster.process import exits


class ProcessTest(absltest.TestCase):
  def test_the_end_of_each_run_is_known_to_its_observers(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    rows = [Condition(name, 1, 0, False, {})._asdict() for name in 'ab']
    task = {'servers': 0, 'conditions': rows}
    (folder / 'task.json').write_text(json.dumps(task))
    ends = []

    def build(config, *, workdir, process):
      name = pathlib.Path(workdir).name
      self.assertEqual(process['role'], 'worker:0')

      def run():
        # As a leader does, whose followers wait for its end.
        exits.observe_end(lambda code, *_: ends.append((name, code)))
        pathlib.Path(workdir).mkdir()
        pathlib.Path(workdir, 'summary.json').write_text('{}')

      return run

    with mock.patch.object(train, 'build', build):
      process.main(str(folder), '0')
    self.assertEqual(ends, [('a', 0), ('b', 0)])


if __name__ == '__main__':
  absltest.main()
