"""Jobs of the GPU benchmark, with their rows, aims and shares of time.

A job is one process, so that its failure or hang affects no other job.  Aims
limit ratios within a job, because absolute times differ between machines.  The
shares leave some seconds of the five minutes for the description of the
machine.  `pytest -m gpu` has what must be exact.
"""

from collections.abc import Sequence
from typing import NamedTuple

from analysis.benchmarks import Aim

MINUTES = 5.0

DETERMINISM = Aim(most=1.3)  # Time with determinism over without it.
LOOP = Aim(least=0.98)  # Speed over that of a bare jitted loop.


class Row(NamedTuple):
  """Row of the result: a measured quantity and its aim.

  Attributes:
    name: Name within its job.
    quantity: Measured quantity with its unit.
    aim: Interval of accepted values.
    sized: True if the value depends on sizes and speed, so that a dry run gives
      no verdict.
  """

  name: str
  quantity: str
  aim: Aim
  sized: bool = False


class Job(NamedTuple):
  """Job of one process, which measures some rows.

  Attributes:
    name: Name of the job, for --jobs.
    share_s: Largest seconds of the job, of `MINUTES`.
    rows: Rows of the job.
  """

  name: str
  share_s: float
  rows: Sequence[Row]


def _steps(name: str, share_s: float, setup: str) -> Job:
  return Job(
    name,
    share_s,
    (
      Row(
        'determinism',
        f'{setup}: step time with determinism over without',
        DETERMINISM,
        sized=True,
      ),
      Row(
        'bare loop',
        f'{setup}: steps per second over those of a bare jitted loop',
        LOOP,
        sized=True,
      ),
    ),
  )


JOBS = (
  _steps('vgg16', 40, 'VGG16 at 1/8 width on digits, batch 16'),
  _steps('vgg16_full', 46, 'VGG16 at full width, batch 32'),
  _steps('alexnet', 34, 'AlexNet, batch 32'),
  _steps('resnet50', 52, 'ResNet-50 on 224 x 224 pixels, batch 32'),
  _steps('transformer', 34, 'Transformer on text, batch 16'),
  _steps('topk', 18, 'a million numbers through wire topk'),
  Job(
    'ring',
    50,
    (
      Row(
        'copy to host',
        'rate of 1 MiB buckets to the host over that of one large copy, 2 '
        'processes at a time',
        Aim(least=0.5),
        sized=True,
      ),
      Row(
        'pinned memory',
        'rate of 1 MiB buckets to pinned memory over that to other memory, 2 '
        'processes at a time',
        Aim(least=1.0),
        sized=True,
      ),
      Row(
        'copy to device',
        'GB/s to the device, 2 processes at a time',
        Aim(least=3.0),
        sized=True,
      ),
      Row(
        'overlap time',
        'step time of a ring of 2 processes with overlap over without',
        Aim(most=1.0),
        sized=True,
      ),
      Row(
        'exposed communication',
        'exposed communication of a step with overlap over without',
        Aim(most=1.0),
        sized=True,
      ),
      Row(
        'overlap',
        '1 if summary.json names what sending overlaps with, else 0',
        Aim(1, 1),
      ),
    ),
  ),
)
