"""Tests for evaluations by workers, some of which are lost."""

import threading
import time
from concurrent.futures import Future

import jax
import jax.numpy as jnp
from absl.testing import absltest

from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.network.streams import Security, connect
from cluster.parameter_server import evaluation
from cluster.process.deadlines import Deadlines
from tests.support import coordinators

_SETTINGS = coordinators.make_settings()
_ONE, _OTHER = '1' * 32, '2' * 32
_PARAMS = {'b': jnp.arange(3.0), 'a': jnp.full((2, 2), 0.1)}
_STATS = (jnp.float32(7.0),)


class _Figures:
  """An evaluation whose figures differ between versions; counts its calls."""

  measures = {'accuracy': 'rises', 'other': 'rises'}

  def __init__(self):
    self.calls = 0

  def __call__(self, params, stats):
    self.calls += 1
    total = sum(float(jnp.sum(leaf)) for leaf in params.values())
    return {'accuracy': total / 10, 'other': float(stats[0])}

  def is_finite(self, params):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in params.values())

  def warm_up(self, params, stats):
    self(params, stats)


class _Evaluators:
  """Workers of this process, each with a function that answers requests."""

  def __init__(self, *workers):
    self.workers, self.asked = workers, []

  def request_evaluation(self, number, address, excluded, names):
    del names
    for index, answer in enumerate(self.workers):
      if (index, 0) not in excluded:
        self.asked.append(index)
        asked = evaluation.PendingEvaluation(index, 0, Future())
        question = messages.Evaluate(number, address)
        threading.Thread(target=answer, args=(question, asked.figures)).start()
        return asked
    return None


def _able(figures):
  """Returns a worker that answers as real ones do."""
  evaluator = evaluation.Evaluator(figures, (_PARAMS, _STATS), _SETTINGS)

  def answer(question, future):
    def send(message):
      if message.figures is None:
        future.set_exception(evaluation.EvaluationLost(message.error))
      else:
        future.set_result(message.figures)

    evaluator.answer(question, send)

  return answer


def _dies(question, future):
  future.set_exception(evaluation.EvaluationLost('it is lost'))


def _hangs(question, future):
  pass


class RemoteEvaluationTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.own, self.far = _Figures(), _Figures()
    self.expected = _Figures()(_PARAMS, _STATS)

  def _create(self, *workers, timeout_s=5.0, start_s=20.0):
    deadlines = Deadlines(timeout_s=timeout_s, start_s=start_s, windows=False)
    evaluate = evaluation.RemoteEvaluation(
      self.own, settings=_SETTINGS, deadlines=deadlines
    )
    self.evaluators = _Evaluators(*workers)
    evaluate.attach(self.evaluators)
    return evaluate

  def test_a_worker_evaluates_the_same_version(self):
    evaluate = self._create(_able(self.far))
    self.assertEqual(evaluate(_PARAMS, _STATS), self.expected)
    self.assertEqual((self.far.calls, self.own.calls), (1, 0))

  def test_another_worker_evaluates_if_the_first_is_lost(self):
    evaluate = self._create(_dies, _able(self.far))
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(evaluate(_PARAMS, _STATS), self.expected)
    self.assertIn('Worker 0 does not evaluate', logs.output[0])
    self.assertIn('it is lost', logs.output[0])
    self.assertEqual(evaluate(_PARAMS, _STATS), self.expected)
    self.assertEqual(self.evaluators.asked, [0, 1, 1])
    self.assertEqual((self.far.calls, self.own.calls), (2, 0))

  def test_the_coordinator_evaluates_if_no_worker_can_and_logs_it(self):
    evaluate = self._create(_dies, _dies)
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(evaluate(_PARAMS, _STATS), self.expected)
    self.assertIn('evaluates on its CPU', logs.output[-1])
    self.assertEqual(self.own.calls, 1)

  def test_without_accelerators_the_coordinator_evaluates_silently(self):
    evaluate = self._create()
    with self.assertNoLogs(level='WARNING'):
      self.assertEqual(evaluate(_PARAMS, _STATS), self.expected)

  def test_a_worker_that_hangs_is_awaited_until_its_deadline(self):
    evaluate = self._create(_hangs, _able(self.far), timeout_s=0.1, start_s=0.4)
    start = time.monotonic()
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(evaluate(_PARAMS, _STATS), self.expected)
    self.assertGreaterEqual(time.monotonic() - start, 0.4)
    self.assertIn('no answer for', logs.output[0])

  def test_an_error_of_the_worker_reaches_the_log(self):
    class Full(_Figures):
      def __call__(self, params, stats):
        raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: memory')

    evaluate = self._create(_able(Full()))
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(evaluate(_PARAMS, _STATS), self.expected)
    self.assertIn('RESOURCE_EXHAUSTED', logs.output[0])

  def test_later_deadlines_leave_time_for_another_process(self):
    deadlines = Deadlines(timeout_s=5.0, start_s=300.0, windows=False)
    for longest_s in (1.0, 100.0, 1000.0):
      limit_s = deadlines.evaluation_s(longest_s)
      self.assertGreater(limit_s, 2 * longest_s)
      self.assertFalse(deadlines.is_job_overdue(2 * limit_s, longest_s))


class ReceptionTest(absltest.TestCase):
  """Streams of ours in the place of workers."""

  def setUp(self):
    super().setUp()
    self.coordinator = coordinators.Coordinator(num_workers=2, start_s=3.0)
    self.addCleanup(self.coordinator.close)

  def _worker(self, index, process, **ready):
    hello = messages.WorkerHello(index, process, 'ours')
    stream = connect(self.coordinator.address, hello, Security(), 10.0)
    self.addCleanup(stream.close)
    self.addCleanup(stream.cancel)
    stream.receive(messages.WORKER_ADMISSION)
    stream.receive(messages.TO_WORKER)  # Addresses.
    stream.send(messages.WorkerReady((), **ready))
    # Once it is answered, the message before has been handled.
    stream.send(messages.WorkerHeartbeat(0.0, ('transfer', -1, 0)))
    reply = stream.receive(messages.TO_WORKER).header
    self.assertIsInstance(reply, messages.HeartbeatReply)
    return stream

  def _ask(self, number=5, excluded=()):
    return self.coordinator.reception.request_evaluation(
      number, '127.0.0.1:1', set(excluded), ['accuracy']
    )

  def test_the_first_worker_with_an_accelerator_is_asked(self):
    self._worker(0, _ONE, has_accelerator=False)
    stream = self._worker(1, _OTHER, has_accelerator=True)
    asked = self._ask()
    request = stream.receive(messages.TO_WORKER).header
    self.assertEqual(request, messages.Evaluate(5, '127.0.0.1:1'))
    figures = {'accuracy': 0.5}
    stream.send(messages.Evaluated(5, figures))
    self.assertEqual(asked.figures.result(10.0), figures)
    self.assertEqual((asked.worker, asked.incarnation), (1, 0))
    self.assertIsNone(self._ask(excluded={(1, 0)}))

  def test_workers_without_an_accelerator_are_not_asked(self):
    self._worker(0, _ONE)
    self.assertIsNone(self._ask())

  def test_the_loss_of_a_worker_ends_the_wait(self):
    stream = self._worker(0, _ONE, has_accelerator=True)
    asked = self._ask()
    stream.cancel()
    with self.assertRaisesRegex(evaluation.EvaluationLost, 'it is lost'):
      asked.figures.result(10.0)
    self.assertIsNone(self._ask())

  def test_an_unrequested_answer_ends_the_session(self):
    stream = self._worker(0, _ONE, has_accelerator=True)
    stream.send(messages.Evaluated(3, {}))
    with self.assertRaises(TransportError):
      while True:
        stream.receive(messages.TO_WORKER)

  def test_results_that_are_no_numbers_end_the_session(self):
    stream = self._worker(0, _ONE, has_accelerator=True)
    asked = self._ask()
    figures = {'accuracy': 'high'}
    stream.send(messages.Evaluated(5, figures))
    with self.assertRaises(evaluation.EvaluationLost):
      asked.figures.result(10.0)


if __name__ == '__main__':
  absltest.main()
