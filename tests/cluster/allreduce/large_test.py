"""Tests of an allreduce run of 512 simulated members in one process."""

import functools
import gc
import random
import time
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.allreduce.planning import build_forest
from cluster.network.messages import encode_header
from cluster.probing.events import ForestPlanned
from route import double_tree, ring
from tests.support import members, replicas
from topology.forests import verify

# CPU seconds of an event: those of other processes do not count.
_MOST_S = 0.05
# CPU seconds of `_measure_reference_s` on an idle machine.
_REFERENCE_S = 0.002


def _measure_reference_s():
  """Returns the CPU seconds of fixed work: busy neighbours double them."""
  start = time.thread_time()
  _ = {number: str(number) for number in range(20000)}
  return time.thread_time() - start


class _Planner:
  """Planner in the place of another process: a test asks for results."""

  def __init__(self):
    self.requests = {}

  def begin(self, key, request):
    self.requests[key] = request


class _Files:
  """Files that take no time, as mock ones do."""

  def __getattr__(self, name):
    return _Files()

  def __call__(self, *args, **fields):
    del args, fields


def _send(session, message):
  """Sends a message to a member, encoded as for a stream."""
  encode_header(message, 0)
  session.to_member.append(message)


class _LargeRun(replicas.SimulatedRun):
  """Run that gives each member all that it can do, one after the other.

  Attributes:
    longest_s: Longest CPU time of an event of the coordinator, and the event.
  """

  def __init__(self, workers, planner, build):
    self.longest_s, self._planner = (0.0, ''), planner
    super().__init__(
      workers,
      build=build,
      planner=planner,
      files=_Files(),
    )

  @functools.cache  # noqa: B019 - The run ends with its test.
  def write_statistics(self, index, ranges):
    return super().write_statistics(index, ranges)

  def take(self):
    before, waiting = time.thread_time(), repr(self.rendezvous._phase)
    super().take()
    taken_s = time.thread_time() - before
    if taken_s > _MOST_S / 2:
      taken_s /= max(1.0, _measure_reference_s() / _REFERENCE_S)
    self.longest_s = max(self.longest_s, (taken_s, waiting))

  def plan(self):
    """Ends packing: the coordinator takes the newest forest."""
    key, request = self._planner.requests.popitem()
    event = ForestPlanned(key=key, forest=build_forest(request))
    self.reception.events.put(event)
    self.take()

  def sweep(self, condition, limit=200):
    """Executes steps of all members until a condition holds."""
    for _ in range(limit):
      if condition():
        return
      for session in [*self.sessions.values()]:
        while session.to_coordinator:
          self.deliver(session)
        while session.is_alive and session.to_member:
          session.arrive()
        while session.is_alive and (action := next(session.actions(), None)):
          action()
          if session.doing == 'waiting':
            break
      while not self.reception.events.empty():
        self.take()
    raise AssertionError(
      f'The condition does not hold: {self.rendezvous._phase}'
    )


class LargeRunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    gc.disable()  # It passes over all simulated members, in some event.
    self.addCleanup(gc.enable)
    # Checks of the simulation that take O(n^2) for each member.
    for name, value in (
      ('unreachable_peer', lambda session: None),
      ('digest', property(lambda session: str(session.version))),
      ('send', _send),
    ):
      self.enterContext(mock.patch.object(members.Session, name, value))

  @parameterized.named_parameters(
    ('double_tree', double_tree.build_forest),
    ('ring', ring.build_in_order),
  )
  def test_512_members_form_lose_20_and_admit_20_in_short_events(self, build):
    # The same events again, if busy neighbours have slowed one.
    longest = []
    while len(longest) < 5 and min(longest, default=(1.0, ''))[0] >= _MOST_S:
      longest.append(self._run(build))
    self.assertLess(min(longest)[0], _MOST_S, longest)

  def _run(self, build):
    """Returns the longest event of a run."""
    planner = _Planner()
    run = _LargeRun(512, planner, build)
    run.sweep(lambda: bool(planner.requests))
    self.assertIsNone(run.rendezvous.packed)  # The members wait for the forest.
    run.plan()
    run.sweep(lambda: run.runtime.epochs.is_running)
    run.runtime.start()
    run.sweep(lambda: run.store.version >= 2)

    lost = sorted(random.Random(0).sample(range(1, 512), 20))
    for index in lost:
      run.members[index].end()
    version = run.store.version
    run.sweep(lambda: run.store.version >= version + 2)

    quick = run.rendezvous.packed
    self.assertEqual({*range(512)} - {*quick.members}, {*lost})
    verify.check(quick.links, quick.forest)
    run.plan()
    run.sweep(lambda: run.rendezvous.packed is not quick)
    self.assertEqual(run.rendezvous.packed.members, quick.members)
    for index in lost:
      run.join(index, process='another')
    run.sweep(
      lambda: (
        run.runtime.epochs.is_running
        and len(run.rendezvous.members) == 512
        and run.store.version >= version + 4
      )
    )
    run.check()
    return run.longest_s


if __name__ == '__main__':
  absltest.main()
