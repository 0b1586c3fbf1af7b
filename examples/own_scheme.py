"""A custom scheme, K-async, compared to BSP and ASP.

  python -m examples.own_scheme [--epochs=8] [--k=2]

K-async applies every k pushes as one update and then releases their workers
(Dutta et al., 'Slow and Stale Gradients Can Win the Race', AISTATS 2018).
Four virtual workers, the slowest three times slower, train a small perceptron
on digits.  Prints, after the table of each run, one of all runs: accuracy,
virtual seconds, updates, share of waiting and mean staleness.  Takes about 5 s
on two cores.
"""

import dataclasses
import tempfile

import ml_collections
from absl import app, flags

import train
from configs import checks, default
from sync import asp, bsp, scheme
from sync.scheme import Decision, Push, Scheme

_COLUMNS = ('accuracy', 'virtual s', 'updates', 'waiting', 'staleness')


@dataclasses.dataclass
class KAsync:
  """State of K-async.  A worker that joins is released at once.

  Attributes:
    k: Pushes of an update.  After a leave, an update may have fewer.
    members: State of each worker: absent, waiting or running.
    pushed: Pushes since the last update.
    updates: Updates so far; the next one's id.
  """

  is_state = True  # Plain data: checkpoints hold it.

  k: int
  members: scheme.Members
  pushed: int = 0
  updates: int = 0

  def start(self, time: float) -> Decision:
    return Decision(release=self.members.release_all())

  def push(self, push: Push) -> Decision:
    self.members.stop(push.worker)
    self.pushed += 1
    return self._update(Decision(into=self.updates))

  def wake(self, time: float) -> Decision:
    return Decision()

  def leave(self, worker: int, time: float) -> Decision:
    self.members.leave(worker)
    return self._update(Decision())

  def join(self, worker: int, time: float) -> Decision:
    self.members.join(worker)
    return Decision(release=self.members.release((worker,)))

  def _update(self, decision: Decision) -> Decision:
    # An update has fewer than k pushes if no worker is left that could push.
    if not self.pushed or (self.pushed < self.k and self.members.running):
      return decision
    self.pushed, self.updates = 0, self.updates + 1
    release = self.members.release_all()
    return decision._replace(commit=(self.updates - 1,), release=release)


def make(*, num_workers: int, k: int = 2) -> KAsync:
  """Returns K-async for `num_workers` workers.

  Raises:
    ValueError: If an argument is out of range.
  """
  checks.check_integer('k', k, at_least=1)
  return KAsync(k=k, members=scheme.make_members(num_workers))


def config(epochs: float) -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  result = default.get_config()
  result.epochs = epochs
  result.model.name = 'mlp'
  result.checkpoint.every_s = float('inf')  # The runs are short.
  return result


def compare(*, epochs: float, k: int) -> None:
  """Trains under each scheme, K-async with `k` pushes, and prints the table."""
  shared = config(epochs)
  workers = shared.cluster.workers
  schemes: dict[str, Scheme] = {
    'bsp': bsp.make(num_workers=workers),
    'asp': asp.make(num_workers=workers),
    f'{k}-async': make(num_workers=workers, k=k),
  }
  rows = {}
  for name, each in schemes.items():
    with tempfile.TemporaryDirectory() as folder:
      done = train.build(shared, workdir=f'{folder}/run', scheme=each)()
    rows[name] = (
      f'{done["final_accuracy"]:.1%}',
      f'{done["virtual_s"]:.1f}',
      str(done['updates']),
      f'{done["waiting_share"]:.1%}',
      f'{done["staleness_mean"]:.2f}',
    )
  print('scheme  ', *(column.rjust(10) for column in _COLUMNS))
  for name, row in rows.items():
    print(name.ljust(8), *(cell.rjust(10) for cell in row))


def main(argv: list[str]) -> None:
  """Compares the schemes as the flags say."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  compare(epochs=flags.FLAGS.epochs, k=flags.FLAGS.k)


if __name__ == '__main__':
  flags.DEFINE_float('epochs', 8.0, 'Length of a run, epochs.')
  flags.DEFINE_integer('k', 2, 'Pushes of an update of K-async.')
  app.run(main)
