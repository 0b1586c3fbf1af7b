"""Tests for diagnosis.pipeline and its verdicts."""

import numpy as np
from absl.testing import absltest

from diagnosis import pipeline, verdicts

_MICROBATCHES = 3


def simulate(steps, stages, copies, compute_s, transfer_s=0.01):
  """Operations of GPipe: all forward, then all backward, then a collective.

  Written down by the recurrence of the schedule, without replays.

  Args:
    steps: Number of steps.
    stages: Number of stages.
    copies: Number of data-parallel ranks.
    compute_s: Function of step, stage, copy and microbatch.
    transfer_s: Seconds of a message.
  """
  rows = []
  for step in range(steps):
    ends = np.zeros((copies, stages))

    def run(copy, stage, kind, seconds, number, step=step, ends=ends):
      row = (stage * copies + copy, stage, copy, step, kind)
      rows.append((*row, ends[copy, stage], seconds, number))
      ends[copy, stage] += seconds

    for copy in range(copies):
      for kind, order in (('forward', 1), ('backward', -1)):
        path = range(stages)[::order]
        for number in range(_MICROBATCHES):
          for stage in path:
            seconds = compute_s(step, stage, copy, number)
            if stage != path[0]:
              before = stage - order
              both = ends[copy, stage], ends[copy, before]
              end = max(both) + transfer_s
              for who, what, since in (
                (before, 'send', both[1]),
                (stage, 'recv', both[0]),
              ):
                run(copy, who, f'{kind}-{what}', end - since, number)
            run(copy, stage, f'{kind}-compute', seconds, number)
    over = ends.max(axis=0) + 0.05
    for copy in range(copies):
      for stage in range(stages):
        took_s = over[stage] - ends[copy, stage]
        run(copy, stage, 'grads-reduce-scatter', took_s, 0)
  fields = zip(*rows, strict=True)
  return pipeline.Operations(*(np.array(field) for field in fields))


class PipelineTest(absltest.TestCase):
  def test_a_replay_of_what_was_recorded_takes_as_long(self):
    draws = np.random.default_rng(0)
    operations = simulate(4, 3, 2, lambda *_: draws.uniform(0.1, 0.3))
    found = pipeline.measure(operations)
    np.testing.assert_allclose(found.replayed_s, found.recorded_s, rtol=1e-9)

  def test_another_duration_gives_what_the_schedule_would(self):
    def seconds(step, stage, copy, number):
      return 0.1 + 0.01 * ((7 * step + 3 * stage + 5 * copy + number) % 4)

    def slower(step, stage, copy, number):
      is_changed = (stage, copy, number) == (1, 0, 2)
      return seconds(step, stage, copy, number) * (3 if is_changed else 1)

    recorded = simulate(1, 3, 2, seconds)
    (expected,) = pipeline.measure(simulate(1, 3, 2, slower)).recorded_s
    (step,) = pipeline.steps(recorded)
    operations = step.operations
    changed = step.seconds
    changed[
      (operations.rank == 2)
      & (operations.sequence == 2)
      & np.char.endswith(operations.kind, 'compute')
    ] *= 3
    np.testing.assert_allclose(
      pipeline.replay(step, changed[None]), expected, rtol=1e-9
    )

  def test_the_slow_stage_is_blamed(self):
    draws = np.random.default_rng(1)
    operations = simulate(
      30, 4, 2, lambda _, stage, *__: draws.normal(1, 0.02) * (1 + (stage == 3))
    )
    found = verdicts.judge_pipeline(pipeline.measure(operations))
    self.assertEqual([each.kind for each in found], ['stage', 'none'])
    self.assertEqual(found[0].name, '3')
    self.assertBetween(
      2.0, found[0].ratio.low - 0.02, found[0].ratio.high + 0.02
    )
    self.assertLess(found[0].share.high, 1)

  def test_the_slow_rank_is_blamed(self):
    draws = np.random.default_rng(2)
    operations = simulate(
      30,
      2,
      4,
      lambda _, stage, copy, __: (
        draws.normal(1, 0.02) * (1 + ((stage, copy) == (1, 2)))
      ),
    )
    found = verdicts.judge_pipeline(pipeline.measure(operations))
    self.assertEqual(
      [(each.kind, each.name) for each in found], [('worker', '6')]
    )

  def test_nobody_is_blamed_for_uneven_microbatches(self):
    draws = np.random.default_rng(3)
    lengths = draws.lognormal(0, 0.5, (30, 4, _MICROBATCHES))
    operations = simulate(
      30, 2, 4, lambda step, _, copy, number: lengths[step, copy, number]
    )
    (found,) = verdicts.judge_pipeline(pipeline.measure(operations))
    self.assertEqual(found.kind, 'none')
    self.assertIn('microbatches are of unequal lengths', found.text)

  def test_few_steps_are_insufficient_evidence(self):
    operations = simulate(12, 2, 2, lambda *_: 0.1)
    (found,) = verdicts.judge_pipeline(pipeline.measure(operations))
    self.assertEqual(found.text, 'insufficient evidence: 12 iterations')

  def test_wrong_times_are_refused(self):
    operations = simulate(1, 2, 2, lambda *_: 0.1)
    operations.duration[3] = np.nan
    with self.assertRaisesRegex(ValueError, 'duration: expected finite'):
      pipeline.measure(operations)
    operations.duration[3] = -1.0
    with self.assertRaisesRegex(ValueError, 'duration: expected finite'):
      pipeline.measure(operations)


if __name__ == '__main__':
  absltest.main()
