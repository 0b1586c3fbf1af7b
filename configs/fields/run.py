"""Fields of a whole run, with all sections."""

from configs.fields.batching import BATCHING
from configs.fields.cluster import CLUSTER
from configs.fields.data import DATA
from configs.fields.field import (
  Field,
  Section,
  count,
  natural,
  port,
  positive,
  seed,
)
from configs.fields.learning import (
  OPTIMIZER,
  OUTER,
  PRECISION,
  SCHEDULE,
  STALENESS,
)
from configs.fields.model import MODEL
from configs.fields.route import ROUTE
from configs.fields.sync import SYNC
from configs.fields.wire import WIRE

RUN = Section(
  'A run.  A section with a `name` chooses one of its sub-sections.  Only the '
  'chosen one is used, and a changed field in another one is an error.  Where '
  'there is a section `own`, the name may be the dotted path of your own '
  'module; `own` then has the fields of its `make`.',
  seed=seed(0, 'Seed of parameters, data order, dropout and simulated jitter.'),
  deterministic=Field(
    True,
    'Whether GPUs use kernels with bit-reproducible results, as CPUs do '
    'anyway.',
  ),
  epochs=positive(
    40.0,
    'Length of the run; fractions are allowed.  The same command with more '
    'epochs continues a run that has finished.',
    unit='epochs',
  ),
  eval_every=positive(
    1.0,
    'Interval of evaluations on the test split: a number of epochs, or seconds '
    "of virtual or real time, such as '10s'.  Each is of the first version at "
    'or after a multiple of it.',
    unit='epochs',
    or_seconds=True,
  ),
  log_every=count(
    100, 'Iterations between log rows.', unit='iterations', is_display=True
  ),
  eval_top=natural(
    0,
    'Also reports top-k accuracy, for this k of at least 2; 0 for accuracy '
    'alone.',
    needs=('model',),
  ),
  eval_loss=Field(
    False,
    'Also reports the mean loss on the test split; language models always do.',
    needs=('model',),
  ),
  time_to=Field(
    (0.9, 0.95),
    'Accuracies whose first time is reported, if the task has an accuracy.',
    above=0,
    at_most=1,
    needs=('model',),
  ),
  time_to_loss=positive(
    (),
    'Losses whose first time is reported: ten iterations in a row below them.',
    needs=('model',),
  ),
  time_to_measure=Section(
    'Values of other measures of the task, as fields of their names, whose '
    'first time is reported, such as config.time_to_measure.perplexity = '
    '(40.0,).',
  ),
  outputs=Section(
    'Which optional files does the run write?',
    timeline=Field(True, 'trace.json: phases of every worker.'),
    events=Field(True, 'events.jsonl: events, for replays.'),
    board=Field(True, 'Files for TensorBoard.', is_display=True),
    mlflow=Field(
      '',
      "Tracking URI of MLflow, such as 'http://host:5000', to which the run is "
      "sent, too; '' for none.  It has no password: MLflow takes that from "
      'MLFLOW_TRACKING_PASSWORD.',
      is_uri=True,
      is_display=True,
    ),
    metrics_port=port(
      0,
      'Port of the coordinator for /metrics and /healthz over HTTP; 0 for '
      'none.',
      needs=('real',),
      is_local=True,
    ),
  ),
  sync=SYNC,
  batching=BATCHING,
  wire=WIRE,
  route=ROUTE,
  cluster=CLUSTER,
  precision=PRECISION,
  model=MODEL,
  data=DATA,
  checkpoint=Section(
    'When are checkpoints saved?',
    every_s=positive(
      60.0,
      'Wall time between checkpoints; inf for none.',
      unit='seconds',
      infinite=True,
      is_display=True,
    ),
    every_examples=natural(
      0,
      'Progress between checkpoints; 0 for none.',
      unit='examples',
      is_display=True,
    ),
    keep=count(
      2, 'Number of checkpoints that are kept, the newest.', is_display=True
    ),
  ),
  optimizer=OPTIMIZER,
  outer=OUTER,
  staleness=STALENESS,
  schedule=SCHEDULE,
)
