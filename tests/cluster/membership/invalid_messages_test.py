"""Valid messages with contents that cannot be true: only the sender is lost."""

import random
from concurrent.futures import Future
from typing import get_args

import msgspec
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from batching import lb_bsp
from cluster.allreduce.step_statistics import StepStatistics
from cluster.membership.events import MOST_WAITING, WorkerLost, WorkerMessage
from cluster.membership.members import Member
from cluster.membership.worker_states import PartRequests, ResidualId
from cluster.network import messages
from cluster.network.errors import InvalidMessage
from predict import ema
from tests.support import coordinators, drawn_messages, replicas

_REPLICA = get_args(messages.FromReplica)
_WORKER = get_args(messages.FromWorker)


def _batching(workers, num_factors):
  """Returns a batching that refuses impossible measurements."""
  return lb_bsp.make(
    num_workers=workers,
    worker_batch=8,
    predictor=ema.make(
      num_workers=workers, num_factors=num_factors, seed=0, smoothing=0.5
    ),
    threshold=0.0,
    least=1,
    most=(64,),
  )


class AllreduceTest(parameterized.TestCase):
  @parameterized.parameters(*range(12))
  def test_messages_of_one_worker_do_not_end_the_run(self, seed):
    self._fuzz(seed, lies=30)

  @pytest.mark.soak
  def test_many_messages_of_one_worker_do_not_end_the_run(self):
    for seed in range(200):
      self._fuzz(seed, lies=100)

  def _fuzz(self, seed, *, lies):
    """Lets worker 3 of 4 send random messages, and rejoin."""
    rng, world = random.Random(seed), replicas.SimulatedRun(4)
    world.begin()
    for _ in range(lies):
      for _ in range(rng.randrange(12)):
        world.step(rng.choice)
      liar = world.members[3]
      if not liar.is_alive:
        world.join(3)
        continue
      liar.to_coordinator.insert(0, self._lie(rng, world))
      world.deliver(liar)
    world.members[3].end()
    world.run_until(lambda: 3 not in world.rendezvous.members, rng.choice)
    world.reach(world.store.version + 3, rng.choice)
    incarnations = [each.incarnation for each in world.reception.members[:3]]
    self.assertEqual(incarnations, [0, 0, 0])

  def _lie(self, rng, world):
    """Returns a random message, often of the current epoch."""
    message = drawn_messages.make(rng, rng.choice(_REPLICA))
    near = {
      'membership_epoch': world.rendezvous.membership_epoch,
      # The last version, which is known: others may have any state of it.
      'version': world.store.version,
    }
    fields = {
      name: value
      for name, value in near.items()
      if name in message.__struct_fields__ and rng.random() < 0.7
    }
    return msgspec.structs.replace(message, **fields)

  @parameterized.parameters(
    (messages.Connected(1, 0, 'x', [(9, 1, 1.0)]), 'sent'),
    (messages.ConnectionLost(1, 9, 'x'), 'peer'),
    (messages.EpochStopped(1, 2**40, []), 'version'),
    (messages.EpochStopped(1, 0, [1.0]), 'statistics'),
    (messages.TrafficReport([(1, 1, 1.0), (1, 1, 1.0)]), 'sent'),
    (messages.StateCompared(1, 0, 'x', -1.0), 'difference'),
  )
  def test_the_sender_is_evicted_with_the_reason(self, message, field):
    world = replicas.SimulatedRun(3)
    world.begin()
    world.reach(2)
    number = world.rendezvous.membership_epoch
    if 'membership_epoch' in message.__struct_fields__:
      message = msgspec.structs.replace(message, membership_epoch=number)
    liar = world.members[2]
    liar.to_coordinator.insert(0, message)
    world.deliver(liar)
    (end,) = [
      each for each in liar.to_member if isinstance(each, messages.SessionEnd)
    ]
    self.assertEqual(end.kind, 'left')
    self.assertIn(f'{field}: expected', end.reason)
    world.join(2)
    world.gather()
    world.reach(world.store.version + 3)
    world.check()

  def test_messages_of_a_worker_that_is_no_member_are_ignored(self):
    world = replicas.SimulatedRun(3)
    world.begin()
    world.reach(2)
    world.members[2].end()
    world.run_until(lambda: world.rendezvous.members == (0, 1))
    world.join(2)
    newcomer = world.members[2]
    world.deliver(newcomer)
    number = world.rendezvous.membership_epoch
    for message in (
      messages.EpochStopped(number, 0, []),
      messages.Connected(number, 0, 'x', []),
    ):
      newcomer.to_coordinator.insert(0, message)
      world.deliver(newcomer)
    world.reach(world.store.version + 3)
    self.assertIs(world.reception.members[2].stream, newcomer)
    world.check()

  def test_a_late_answer_of_a_worker_that_was_evicted_is_ignored(self):
    requests = PartRequests()
    part = requests.request(0, Member(incarnation=0), 3, ResidualId())
    requests.end(0, 0)
    requests.answer(0, 0, messages.ResidualSaved(3, True, None))
    self.assertFalse(part.result())

  def test_a_worker_cannot_be_ready_twice(self):
    world = replicas.SimulatedRun(2)
    world.begin()
    again = messages.ReplicaReady('127.0.0.1:1')
    with self.assertRaises(InvalidMessage):
      world.reception.handle(world.members[1].incarnation, again)

  def test_an_iteration_with_impossible_statistics_is_recorded(self):
    world = replicas.SimulatedRun(3, batching=_batching(3, 0))
    world.begin()
    layout = world.layout

    def write(index, ranges):
      del ranges
      compute_s = 0.0 if index == 2 else 1.0
      statistics = StepStatistics(0.0, 0.0, compute_s, 8, 1.0, 0, 1.0, 1)
      numbers = np.empty(layout.size, np.float32)
      layout.write(numbers, index, statistics, ())
      return numbers

    world.write_statistics = write
    world.run_until(lambda: world.rendezvous.members == (0, 1))
    world.reach(world.store.version + 3)
    world.check()

  def test_waiting_messages_of_a_worker_are_bounded(self):
    world = replicas.SimulatedRun(3)
    world.begin()
    incarnation = world.members[2].incarnation
    report = messages.TrafficReport([])
    with self.assertRaisesRegex(InvalidMessage, 'at most'):
      for _ in range(MOST_WAITING + 1):
        world.reception.handle(incarnation, report)
    self.assertFalse(world.join(2, process='another'))
    events = world.reception.events
    self.assertLessEqual(events.qsize(), MOST_WAITING + 1)
    while not events.empty():
      self.assertIsInstance(events.get(), WorkerMessage | WorkerLost)
    self.assertFalse(events.is_full(2))


class ParameterServerTest(parameterized.TestCase):
  def _start(self, **fields):
    run = coordinators.Coordinator(
      num_workers=2, batching=_batching(2, 2), num_factors=2, **fields
    )
    self.addCleanup(run.close)
    workers = [run.member(index) for index in range(2)]
    run.begin()
    return run, *workers

  @parameterized.parameters(
    ({'compute_s': 0.0}, 'compute_s'),
    ({'compute_s': 1e-320}, 'compute_s'),
    ({'factors': []}, 'factors'),
    ({'factors': [1.0]}, 'factors'),
    ({'factors': [0.0] * 10**4}, 'factors'),
    ({'weight': 8.5, 'factors': [0.5, 0.5]}, 'weight'),
  )
  def test_a_worker_with_an_impossible_report_is_evicted(self, fields, name):
    run, honest, liar = self._start()
    liar.pull()
    liar.push(**fields)
    run.until(lambda: run.reception.members[1].stream is None)
    end = liar.next()
    self.assertEqual(end.kind, 'left')
    self.assertRegex(end.reason, f'{name}: expected')
    honest.pull()
    for _ in range(3):
      honest.push(factors=[0.5, 0.5])
      run.during(honest.pull)
    self.assertEqual(run.accounting.iterations, 3)
    again = run.member(1)
    run.during(again.pull)
    again.push(factors=[0.5, 0.5])
    run.until(lambda: run.accounting.iterations == 4)

  def test_a_worker_whose_weight_a_server_did_not_check_is_evicted(self):
    run, honest, liar = self._start()
    liar.pull()
    report = drawn_messages.make(random.Random(0), messages.PushReport)
    report = msgspec.structs.replace(
      report, iteration=0, compute_s=1.0, factors=[0.5, 0.5], weight=9.0
    )
    arrived = messages.PushArrived(1, 0, report)
    run.reception.take_report(0, arrived, ())
    run.until(lambda: run.reception.members[1].stream is None)
    self.assertRegex(liar.next().reason, 'weight: expected at most 8')
    honest.pull()
    honest.push(factors=[0.5, 0.5])
    run.until(lambda: run.accounting.iterations == 1)

  def test_random_messages_of_one_worker_do_not_end_the_run(self):
    self._fuzz(seed=0, lies=60)

  @pytest.mark.soak
  def test_many_random_messages_of_one_worker_do_not_end_the_run(self):
    for seed in range(1, 6):
      self._fuzz(seed, lies=300)
      self.doCleanups()  # Else its coordinator hangs.

  def _fuzz(self, seed, *, lies):
    rng = random.Random(seed)
    run, honest, liar = self._start(timeout_s=3.0)
    reception, has_pulled = run.reception, False
    for lie in range(lies):
      honest.beat(['transfer', 0, lie])  # It makes progress all the time.
      holder = reception.members[1].holder
      if holder is None:
        liar.close()
        liar, has_pulled = run.member(1), False
        run.until(lambda: reception.members[1].stream)
        continue
      if rng.random() < 0.2:
        if not has_pulled:
          run.during(liar.pull)
        self._push(rng, liar)
        has_pulled = False
        before = run.accounting.iterations
        run.until(
          lambda before=before: (
            run.accounting.iterations > before
            or reception.members[1].stream is None
          )
        )
        continue
      message = drawn_messages.make(rng, rng.choice(_WORKER))
      try:
        reception.handle(holder, message)
      except InvalidMessage as error:  # The listener ends the stream.
        reception.lose(holder, str(error))
      while not reception.events.empty():
        run.cluster.step()
    before = run.accounting.iterations
    honest.pull()
    honest.push(factors=[0.5, 0.5])
    run.until(lambda: run.accounting.iterations > before)
    self.assertEqual(run.cluster.summary()['admissions'][0], 1)

  def _push(self, rng, liar):
    report = drawn_messages.make(rng, messages.PushReport)
    kept = ('iteration', 'loss', 'is_finite')  # A NaN ends a run.
    fields = {
      name: value
      for name, value in msgspec.structs.asdict(report).items()
      if name not in kept
    }
    if rng.random() < 0.5:
      fields['factors'] = [0.1, 0.2]
    if rng.random() < 0.5:
      fields['weight'] = rng.uniform(0.0, 8.0)
    liar.push(**fields)

  def test_reports_of_a_server_on_a_noisy_worker_evict_the_worker(self):
    run, honest, noisy = self._start()
    failed = messages.WorkerFailed(1, 0, 'x')
    for _ in range(MOST_WAITING + 1):
      run.reception.take_report(0, failed, ())
    self.assertIsNone(run.reception.members[1].holder)
    run.until(lambda: run.reception.members[1].stream is None)
    self.assertEqual(noisy.next().kind, 'left')
    honest.pull()
    honest.push(factors=[0.5, 0.5])
    run.until(lambda: run.accounting.iterations == 1)

  def test_an_evaluation_without_accuracy_evicts_the_worker(self):
    run, _, _ = self._start()
    reception = run.reception
    holder = reception.members[1].holder
    holder.has_accelerator = True
    asked = reception.request_evaluation(
      5, '127.0.0.1:1', set(), ['accuracy', 'loss']
    )
    for figures in ({}, {'accuracy': 1.0}, {'accuracy': 1.0, 'time': -5.0}):
      with self.assertRaisesRegex(InvalidMessage, 'figures: expected'):
        reception.handle(holder, messages.Evaluated(5, figures))
    with self.assertRaisesRegex(InvalidMessage, 'not asked'):
      reception.handle(holder, messages.Evaluated(6, {'accuracy': 1.0}))
    self.assertFalse(asked.figures.done())
    figures = {'accuracy': 0.5, 'loss': 1.0}
    reception.handle(holder, messages.Evaluated(5, figures))
    self.assertEqual(asked.figures.result(), figures)

  def test_an_answer_to_another_question_is_not_taken(self):
    run, _, _ = self._start()
    parts = run.store.save(3)
    self.assertIsInstance(parts[0], Future)
    (number,) = run.store._questions
    with self.assertRaisesRegex(InvalidMessage, 'not asked'):
      run.reception.take_report(0, messages.VersionPart(number, 64), ())


if __name__ == '__main__':
  absltest.main()
