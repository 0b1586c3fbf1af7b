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
  """A run that is ready to start; call it to train.

  Attributes:
    name: The scheme's, for the table that ends the run.
    manifest: Goes to manifest.json.
    cluster: Runs the events.
    journal: Follows the run.
    files: Where its outputs go.
    console: Where it is shown.
  """

  name: str
  manifest: Mapping[str, Any]
  cluster: VirtualCluster
  journal: Journal
  files: RunFiles
  console: Console

  def __call__(self) -> Mapping[str, Any]:
    """Trains and returns what summary.json holds.

    Raises:
      FloatingPointError: If a loss is not finite.
      RuntimeError: If nobody is left who could go on.
    """
    self.files.begin(self.manifest, num_workers=self.cluster.num_workers)
    logging.info('Compiling ...')
    self.cluster.warm_up()
    self.journal.warm_up()
    warm = compilations.count()
    ended = 'interrupted'
    try:
      with self.console:
        self.cluster.run()
      ended = 'finished'
    except (FloatingPointError, RuntimeError) as error:
      ended = str(error)
      raise
    finally:
      summary = self.journal.summary(
        self.cluster.time,
        ended=ended,
        outstanding=self.cluster.outstanding,
        padding_share=self.cluster.gradient.padding_share,
        compilations=compilations.count() - warm,
      )
      self.files.close(summary)
    self.console.table(self.name, summary)
    logging.info('Outputs are in %s', self.files.workdir)
    return summary
