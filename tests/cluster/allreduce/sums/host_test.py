"""Tests of gradients and sums that overlap with copies from and to a device."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest

from cluster.allreduce.executor import membership
from cluster.allreduce.sums.host import HostReducer
from cluster.network.errors import TransportError
from cluster.network.handshake import Security
from cluster.network.messages import ConnectMembers
from cluster.network.port import Port
from data.dataset import Split
from learning.device_copies import PageableCopies
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.layout import Layout
from learning.learner import TaskLearner
from learning.scaling import factor
from learning.streaming import StreamingGradient
from models.task import Task
from route import links, ring

_WAIT_S = 20.0
_SIZES = {'a': 300, 'b': 7, 'c': 1000}
_EXAMPLES = 8


def _draw(seed):
  """Returns whole numbers, whose sums are exact in any order."""
  rng = np.random.default_rng(seed)
  return rng.integers(-99, 99, (_EXAMPLES, sum(_SIZES.values()))).astype('f4')


def _task():
  def loss(params, inputs, targets, key):
    del targets, key
    return inputs @ jnp.concatenate([params[name] for name in _SIZES]), ()

  params = {name: jnp.zeros(size) for name, size in _SIZES.items()}
  return Task(params, loss, loss)


def _learner():
  return TaskLearner(
    params=_task().params,
    stats=(),
    tx=optax.sgd(1.0, momentum=0.5),
    schedule=lambda **_: 0.25,
    reduction='sum',
    num_workers=2,
    worker_batch=4,
  )


class _FakeDevice(PageableCopies):
  """A device whose copies wait for what a test says, with a log.

  Attributes:
    log: Starts and ends of copies.
    before_landing: Called with the number of a copy to the host before it ends.
    on_return: Called with the number of a bucket whose copy to the device
      starts.
  """

  def __init__(self, log, before_landing, on_return):
    self.log, self.returned = log, 0
    self.before_landing, self.on_return = before_landing, on_return

  def start_to_host(self, arrays):
    self.log += [('start', number) for number in range(len(arrays))]
    self.returned = 0
    return [*enumerate(arrays)]

  def wait_for_host(self, copy):
    number, array = copy
    self.before_landing(number)
    self.log.append(('land', number))
    return np.asarray(array)

  def start_to_device(self, arrays):
    self.log.append(('return', self.returned))
    self.on_return(self.returned)
    self.returned += 1
    return [jnp.array(array) for array in arrays]

  def wait_for_device(self, tree):
    self.log.append(('wait', None))
    super().wait_for_device(tree)


def _ignore(number):
  del number


class HostReducerTest(absltest.TestCase):
  def _open(self, devices):
    """Opens a worker for each device; None for the CPU."""
    task = _task()
    order = tuple(range(len(_SIZES)))
    layout = Layout(task.params, order=order, bucket_bytes=0, step_statistics=1)
    self.layout, self.workers, self.learners = layout, [], []
    for index, device in enumerate(devices):
      gradient = TaskGradient(
        task,
        Split(_draw(index), np.zeros(_EXAMPLES, np.int32)),
        lambda ranges: np.arange(*ranges[0]),
        micro_batch=4,
        seed=0,
      )
      platform = 'fake' if device else 'cpu'
      with mock.patch.object(jax, 'default_backend', lambda p=platform: p):
        streaming = StreamingGradient(
          gradient,
          [bucket.leaves for bucket in layout.buckets],
          overlap=True,
          copies=device,
        )
      worker = HostReducer(
        index,
        workers=len(devices),
        gradient=streaming,
        layout=layout,
        port=Port('127.0.0.1', 0, Security()),
        timeout_s=_WAIT_S,
      )
      self.addCleanup(worker.close)
      self.workers.append(worker)
      self.learners.append(_learner())
    addresses = [worker.open() for worker in self.workers]
    cluster = links.read_cluster('', len(devices))
    described = membership.describe(
      membership.Membership(
        0,
        dict(enumerate(addresses)),
        ring.build_in_order(cluster),
        {name: index for index, name in enumerate(cluster.workers)},
      ),
      cluster,
    )
    order = ConnectMembers(0, 0, None, described)
    self._each(lambda worker: self.workers[worker].form(order, _WAIT_S))

  def _each(self, function):
    workers = range(len(self.workers))
    with ThreadPoolExecutor(len(workers)) as threads:
      return [*threads.map(function, workers)]

  def _sum(self, version, *, applies=True):
    """Sums the gradients of four examples in each worker."""

    def take_part(index):
      with contextlib.ExitStack() as stack:
        stack.callback(self.workers[index].abandon)  # Others must not wait.
        iterate(index)
        stack.pop_all()

    def iterate(index):
      worker, learner = self.workers[index], self.learners[index]
      ranges = ((version % 2 * 4, version % 2 * 4 + 4),)
      iteration = Iteration(
        ranges,
        worker=index,
        number=version,
        scale=factor(learner.scaling),
        version=version,
      )
      worker.compute(learner, iteration, stage=0, least_s=0.0)
      worker.finish(np.ones(1, np.float32))
      statistics, finite = worker.total()
      self.assertEqual((statistics, finite), ([len(self.workers)], True))
      if applies:
        worker.apply(learner, examples=8, weight=8.0, pushes=2)
      else:
        learner.skip()

    self._each(take_part)

  def _expected(self, versions):
    """Returns the parameters after updates with the sums of some versions."""
    velocity = params = np.zeros(sum(_SIZES.values()))
    for version in versions:
      half = slice(version % 2 * 4, version % 2 * 4 + 4)
      total = sum(_draw(k)[half].sum(0) for k in range(len(self.workers)))
      velocity = total / 8 + 0.5 * velocity
      params = params - velocity * 0.25 * 8 / 4
    return params

  def _check(self, versions):
    for learner in self.learners:
      got = np.concatenate([learner.params[name] for name in _SIZES])
      np.testing.assert_array_equal(got, self._expected(versions))

  def test_copies_in_both_directions_overlap_with_sums(self):
    log, summed = [], [threading.Event() for _ in range(4)]

    def wait_for_sum(number):
      # The copy of a bucket ends only once the one before is on its way back.
      if number and not summed[number - 1].wait(_WAIT_S):
        raise AssertionError(f'Bucket {number - 1} was not summed alone.')

    source = _FakeDevice(log, wait_for_sum, _ignore)
    sink = _FakeDevice([], _ignore, lambda number: summed[number].set())
    self._open([source, sink])

    self._sum(0)

    buckets = len(_SIZES)
    self.assertEqual(log[:buckets], [('start', k) for k in range(buckets)])
    lands = [event for event in log if event[0] == 'land']
    self.assertEqual(lands, [('land', k) for k in range(buckets)])
    self._check([0])

  def test_sums_of_devices_equal_those_of_cpus_bit_for_bit(self):
    self._open([_FakeDevice([], _ignore, _ignore), None])
    for version in range(3):
      self._sum(version)
    self._check([0, 1, 2])

  def test_a_buffer_changes_after_the_copies_of_a_skipped_sum_have_ended(self):
    log = []
    self._open([_FakeDevice(log, _ignore, _ignore), None])
    self._sum(0)
    del log[:]
    self._sum(1, applies=False)
    self.assertNotIn(('wait', None), log)
    self._sum(2)
    again = len(_SIZES) * 3  # Starts, landings and returns of one sum.
    self.assertEqual(log[again : again + 2], [('wait', None), ('start', 0)])
    self._check([0, 2])

  def test_a_lost_worker_ends_the_wait_for_a_bucket(self):
    def leave(number):
      if number == 1:
        self.workers[1].close()
        raise TransportError('left')

    stays = _FakeDevice([], _ignore, _ignore)
    self._open([stays, _FakeDevice([], leave, _ignore)])

    def take_part(index):
      with self.assertRaises(TransportError):
        worker = self.workers[index]
        iteration = Iteration(((0, 4),), worker=index, number=0)
        worker.compute(self.learners[index], iteration, stage=0, least_s=0.0)
        worker.finish(np.ones(1, np.float32))
        worker.total()

    self._each(take_part)


if __name__ == '__main__':
  absltest.main()
