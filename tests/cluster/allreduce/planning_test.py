"""Tests for packing forests in other processes, and for runs meanwhile."""

import os
import pathlib
import pickle
import queue
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest, parameterized

from cluster.allreduce import planning
from cluster.probing.events import ForestPlanned
from route import links, ring
from tests.support import builders, replicas
from topology.forests import verify

_ROOT = pathlib.Path(__file__).parents[3]
_PARENT = """
import pickle
from cluster.allreduce import planning
from route import links
from tests.support import builders
request = planning.PackingRequest(
  builders.build_never, links.make_equal(9), 1000, 0.0
)
planning.pack_in_process(pickle.dumps(request), deadline_s=60.0)
"""


def _request(build, avoided=frozenset()):
  return planning.PackingRequest(
    build, links.make_equal(9), 1000, 0.0, frozenset(avoided)
  )


def _run(build, deadline_s=60.0, avoided=frozenset()):
  request = pickle.dumps(_request(build, avoided))
  return planning.pack_in_process(request, deadline_s=deadline_s)


class PackInProcessTest(parameterized.TestCase):
  def test_the_forest_is_that_of_this_process_and_jax_is_not_loaded(self):
    forest = _run(builders.build_without_jax)
    self.assertEqual(forest, ring.build_in_order(links.make_equal(9)))

  def test_a_forest_with_an_avoided_hop_is_replaced(self):
    cluster = links.make_equal(9)
    pair = cluster.workers[0], cluster.workers[1]
    forest = _run(builders.build_without_jax, avoided=[pair])
    verify.check(cluster, forest)
    self.assertNotEqual(forest, ring.build_in_order(cluster))

  @parameterized.parameters(
    (builders.refuse, 60.0, 'There is none'),
    (builders.die, 60.0, 'its process has ended with -9'),
    (builders.build_never, 2.0, 'it takes more than 2 s'),
  )
  def test_there_is_a_reason_if_no_forest_comes(self, build, limit_s, reason):
    with self.assertRaisesRegex(planning.PackingFailed, reason):
      _run(build, limit_s)

  def test_the_process_ends_if_its_parent_is_killed(self):
    file = pathlib.Path(tempfile.mkdtemp(), 'pid')
    parent = subprocess.Popen(
      [sys.executable, '-c', _PARENT],
      cwd=_ROOT,
      env=os.environ | {'BUILDER_FILE': str(file)},
    )
    self.addCleanup(parent.wait)
    self.addCleanup(parent.kill)
    _wait_until(file.exists)
    process = pathlib.Path('/proc', file.read_text())
    self.assertTrue(process.exists())
    parent.kill()
    parent.wait()
    _wait_until(lambda: not process.exists())


class ForestPlannerTest(absltest.TestCase):
  def test_only_the_newest_request_has_a_result(self):
    results = queue.SimpleQueue()
    planner = planning.ForestPlanner(lambda *result: results.put(result))
    planner.begin('first', _request(builders.build_never))
    planner.begin('second', _request(builders.build_without_jax))
    planner.begin('second', _request(builders.build_without_jax))
    key, forest, problem = results.get(timeout=60.0)
    self.assertEqual((key, problem), ('second', ''))
    self.assertLen(forest.trees, 9)
    self.assertTrue(results.empty())


class _Planner:
  def __init__(self):
    self.requests = []

  def begin(self, key, request):
    self.requests.append((key, request))


class RunTest(absltest.TestCase):
  """Runs of ten members whose forests are packed elsewhere."""

  def setUp(self):
    super().setUp()
    self.planner = _Planner()
    self.run_ = replicas.SimulatedRun(10, planner=self.planner)
    self.rows = []
    recorder = self.run_.coordinator.recorder
    recorder.record_links = self.rows.append

  def _rows(self):
    return [row for row in self.rows if 'packed' in row['did']]

  def _end_packing(self, *, is_found):
    key, request = self.planner.requests.pop()
    forest = planning.build_forest(request) if is_found else None
    event = ForestPlanned(key=key, forest=forest, problem='too slow')
    self.run_.reception.events.put(event)
    self.run_.take()

  def test_members_that_are_left_sum_while_a_forest_is_packed(self):
    run = self.run_
    run.run_until(lambda: bool(self.planner.requests))
    self._end_packing(is_found=True)
    run.begin()
    run.reach(2)
    run.members[4].end()
    run.reach(4)
    quick = run.rendezvous.packed
    self.assertNotIn(4, quick.members)
    verify.check(quick.links, quick.forest)
    self._end_packing(is_found=True)
    run.run_until(lambda: run.rendezvous.packed is not quick)
    packed = run.rendezvous.packed
    self.assertEqual(packed.members, quick.members)
    self.assertEqual(packed.forest, ring.build_in_order(packed.links))
    run.reach(6)
    run.join(4)
    run.gather()  # The forest of all is in the cache.
    self.assertEmpty(self.planner.requests)
    run.check()
    self.assertEqual([row['did'] for row in self._rows()], ['packed'] * 2)

  def test_a_run_goes_on_if_no_forest_is_packed_and_records_it(self):
    run = self.run_
    run.run_until(lambda: bool(self.planner.requests))
    self._end_packing(is_found=False)
    run.begin()
    run.reach(2)
    run.members[4].end()
    run.reach(4)
    self._end_packing(is_found=False)
    epoch = run.rendezvous.membership_epoch
    run.reach(8)
    self.assertEqual(run.rendezvous.membership_epoch, epoch)
    self.assertEmpty(self.planner.requests)
    run.check()
    rows = self._rows()
    self.assertEqual([row['did'] for row in rows], ['not packed'] * 2)
    self.assertIn('too slow', rows[0]['why'])


def _wait_until(condition, limit_s=60.0):
  end = time.monotonic() + limit_s
  while not condition():
    if time.monotonic() > end:
      raise TimeoutError('The condition does not hold.')
    time.sleep(0.02)


if __name__ == '__main__':
  absltest.main()
