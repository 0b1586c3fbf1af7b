"""Jobs of the GPU benchmark, with their rows, aims and shares of time.

A job is one process, so that its failure or hang affects no other job.  Aims
limit ratios within a job, or require differences of 0, because absolute times
differ between machines.  The shares leave some seconds of the ten minutes for
the description of the machine.
"""

from collections.abc import Sequence
from typing import NamedTuple

from analysis.benchmarks import Aim
from learning import drift

MINUTES = 10.0
GPU = 'GPU'  # A job that needs a GPU.
ACCELERATOR = 'accelerator'  # A job that needs any device but the CPU.

DETERMINISM = Aim(most=1.3)  # Time with determinism over without it.
LOOP = Aim(least=0.98)  # Speed over that of a bare jitted loop.
NONE = Aim(0.0, 0.0)


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
    needs: Required device, `GPU` or `ACCELERATOR`; '' for none.
  """

  name: str
  share_s: float
  rows: Sequence[Row]
  needs: str = ''


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


def _precision(name: str, error: float, *, base: bool = False) -> list[Row]:
  """Returns the rows of a precision; only the base has no row of its time."""
  rows = [
    Row(
      f'{name} error',
      f'gradient in {name}: relative difference from float32 on the CPU',
      Aim(most=error),
    )
  ]
  if not base:
    quantity = f'step time in {name} over float32'
    rows.append(Row(f'{name} time', quantity, Aim(most=1.0), sized=True))
  return rows


JOBS = (
  _steps('vgg16', 40, 'VGG16 at 1/8 width on digits, batch 16'),
  _steps('vgg16_full', 46, 'VGG16 at full width, batch 32'),
  _steps('alexnet', 34, 'AlexNet, batch 32'),
  _steps('resnet50', 52, 'ResNet-50 on 224 x 224 pixels, batch 32'),
  _steps('transformer', 34, 'Transformer on text, batch 16'),
  _steps('topk', 18, 'a million numbers through wire topk'),
  Job(
    'virtual',
    44,
    (
      Row('equal runs', 'files and digests that differ, two equal runs', NONE),
      Row(
        'kill and resume',
        'files and digests that differ, straight and killed and resumed run',
        NONE,
      ),
    ),
  ),
  Job(
    'digits',
    36,
    (
      Row(
        'accuracy',
        'final accuracy of `make train`',
        Aim(least=0.97),
        sized=True,
      ),
      Row('compilations', 'compilations after warm-up', NONE),
    ),
  ),
  Job(
    'server',
    38,
    (
      Row(
        'recompute',
        'largest difference of parameters, parameter server with 2 workers '
        'and tools.recompute',
        NONE,
      ),
    ),
  ),
  Job(
    'mixed',
    34,
    (
      Row(
        'drift',
        'largest relative difference of replicas, a CPU beside a GPU',
        Aim(0.0, drift.BOUND),
      ),
      Row('corrupt', 'replicas that differed by more than rounding', NONE),
      Row('digests', 'digests that differ once the run has ended', NONE),
    ),
    GPU,
  ),
  # On the CPU, at a quarter of the width, errors were 0.12 and 0.05 in bfloat16
  # and float16.  TF32 has the digits of float16; in float32 only the order of
  # sums differs.
  Job(
    'precision',
    44,
    (
      *_precision('float32', 1e-3, base=True),
      *_precision('TF32', 0.1),
      *_precision('bfloat16', 0.3),
      *_precision('float16', 0.1),
    ),
  ),
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
      Row('recompute', 'largest difference of parameters, recomputed', NONE),
    ),
  ),
  Job(
    'sweep',
    42,
    (
      Row(
        'finished',
        'share of runs that finish, of sweeps of 4 at a time and of one',
        Aim(1, 1),
      ),
      Row(
        'compiled again',
        'programs in the cache of 4 runs beyond those of one run',
        NONE,
      ),
      Row(
        'time',
        'wall time of 4 runs at a time over 4 times that of one',
        Aim(most=1.0),
        sized=True,
      ),
    ),
  ),
  Job(
    'native',
    22,
    (
      Row(
        'recompute',
        'difference of parameters beyond rounding, native with one worker',
        NONE,
      ),
    ),
  ),
  Job(
    'placement',
    30,
    (
      Row('timing-only', 'accelerators started by a run without a model', NONE),
      Row('NARX', 'accelerators started by a run with NARX predictors', NONE),
      Row('servers', 'accelerators started by dedicated servers', NONE),
    ),
    ACCELERATOR,
  ),
  Job(
    'pytest',
    22,
    (Row('failures', 'tests of `pytest -m gpu` that fail', NONE),),
    GPU,
  ),
)
