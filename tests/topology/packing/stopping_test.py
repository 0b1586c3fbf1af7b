"""Long computations stop when they are asked to."""

import itertools

from absl.testing import absltest, parameterized

from topology.algorithms import arborescences, simplex, splitting, stopping
from topology.bounds import allgather, allreduce
from topology.clusters import machines, shapes


class StopTest(parameterized.TestCase):
  """Control comes back when the caller wants it, not before."""

  @parameterized.named_parameters(
    ('bound', lambda stop: allgather.optimum(machines.dgx_a100(1), stop)),
    (
      'bound_with_unequal_switches',
      lambda stop: allgather.optimum(shapes.star([4, 5, 6], [8, 9, 7]), stop),
    ),
    (
      'allreduce',
      lambda stop: allreduce.optimum(shapes.ring(5, 3), stop=stop),
    ),
    (
      'bypass',
      lambda stop: splitting.bypass(
        5,
        range(4),
        [(w, 4, 3) for w in range(4)] + [(4, w, 3) for w in range(4)],
        [1] * 4,
        stop,
      ),
    ),
    (
      'pack',
      lambda stop: arborescences.pack(
        8,
        [(v, v ^ 1 << k, 7) for v in range(8) for k in range(3)],
        [3] * 8,
        stop,
      ),
    ),
    (
      'simplex',
      lambda stop: simplex.Program(
        [3, 5], [([1, 0], 4), ([0, 2], 12), ([3, 2], 17)], stop
      ).solve(),
    ),
  )
  def test_packing_stops_on_request(self, work):
    asked = itertools.count()
    result = work(lambda: next(asked) < 0)  # Which only counts.
    times = next(asked)

    self.assertGreater(times, 3)
    for last in range(times):
      asked = itertools.count()
      with self.assertRaises(stopping.Stopped):
        work(lambda asked=asked, last=last: next(asked) == last)
      self.assertEqual(next(asked), last + 1)
    self.assertEqual(work(stopping.never), result)


if __name__ == '__main__':
  absltest.main()
