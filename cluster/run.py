"""One run from its first compilation to its summary, whatever the runtime."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import logging

from cluster import compilations
from cluster.console import Console
from cluster.files import RunFiles
from cluster.journal import Journal
from cluster.virtual import VirtualCluster


@dataclasses.dataclass
class Run:
  """A run that is ready to start; call it, once, to train.

  Attributes:
    name: The scheme's, for the table that ends the run.
    cluster: Runs the events.
    journal: Follows the run.
    files: Where its outputs go; the folder is claimed.
    console: Where it is shown.
    called: Whether the run was started.
  """

  name: str
  cluster: VirtualCluster
  journal: Journal
  files: RunFiles
  console: Console
  called: bool = False

  def __call__(self) -> Mapping[str, Any]:
    """Trains and returns what summary.json holds.

    Whatever ends the run, summary.json is written and says what it was.

    Raises:
      FloatingPointError: If a loss or a parameter is not finite.
      RuntimeError: If nobody is left who could go on, or on a second call.
    """
    if self.called:
      raise RuntimeError('A run runs once; build another one.')
    self.called = True
    self.files.begin(num_workers=self.cluster.num_workers)
    ended, warm = 'interrupted', 0
    try:
      logging.info('Compiling ...')
      self.cluster.warm_up()
      self.journal.warm_up()
      warm = compilations.count()
      with self.console:
        self.cluster.run()
      ended = 'finished'
    except Exception as error:
      ended = f'{type(error).__name__}: {error}'
      raise
    finally:
      self.cluster.close()
      summary = self.journal.summary(
        self.cluster.time,
        ended=ended,
        outstanding=self.cluster.outstanding,
        script_unreached=self.cluster.script_unreached,
        padding_share=self.cluster.gradient.padding_share,
        compilations=compilations.count() - warm,
      )
      self.files.close(summary)
    self.console.table(self.name, summary)
    logging.info('Outputs are in %s', self.files.workdir)
    return summary
