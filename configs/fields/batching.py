"""Fields of config.batching."""

from configs.fields.field import (
  Field,
  Section,
  count,
  decay,
  fraction,
  natural,
  share,
)


def _most(unit: str = 'examples') -> Field:
  return Field(
    (),
    'Most of a worker: one value, or one per worker; () for no bound.',
    at_least=1,
    items=int,
    unit=unit,
  )


def _training(*, steps: int, weight_decay: float) -> dict[str, Field]:
  """Returns the fields of predict/online.py, which trains a network."""
  return {
    'smoothing': share(
      0.3,
      'Weight of the newest speed in the average that the network corrects.',
    ),
    'quick': share(
      0.7, 'Weight of the newest speed in a quicker average, for comparison.'
    ),
    'discount': share(
      0.03, 'Smoothing factor of the squared errors that weigh predictions.'
    ),
    'kept': count(
      2000,
      'Stored observations of a worker, more than the network reads; at most '
      '200,000 of all workers.',
    ),
    'needed': count(
      30,
      'Observations of a worker before the network predicts it, more than the '
      'network reads; not tuned.',
    ),
    'steps': count(steps, 'Steps of Adam per observation.'),
    'minibatch': count(64, 'Samples of a step.'),
    'learning_rate': share(3e-3, 'Learning rate of Adam.'),
    'decay': decay(weight_decay, 'Decoupled weight decay.'),
    'averaging': share(
      1e-2, 'Weight of the newest parameters in the average that predicts.'
    ),
  }


_PREDICTOR = Section(
  'How fast will each worker be?  Unless a field says otherwise, defaults have '
  'the least error on bench/recorded.csv, from 40 % to 70 % of the values of '
  'each worker.  Around them the errors of the networks hardly change.',
  name=Field('narx', 'Module of predict/, or your own.'),
  own=Section(),
  last=Section('The last speed.'),
  ema=Section(
    'An exponential average.',
    smoothing=share(0.7, 'Weight of the newest speed.'),
  ),
  arima=Section(
    'An ARIMA model per worker.',
    p=natural(0, 'Number of past values in the model.'),
    d=Field(1, '1 to model differences of speeds, else 0.', choices=(0, 1)),
    q=natural(1, 'Number of past errors in the model.'),
    kept=count(
      300,
      'Speeds of a worker that are fitted, the newest, at least '
      '4 (p + d + q) + 4; bounds the cost.',
    ),
    needed=count(
      50,
      'Observations of a worker before its first fit, at least '
      '4 (p + d + q) + 4; not tuned.',
    ),
    refit=count(
      100, 'Observations of a worker between its fits; bounds the cost.'
    ),
    smoothing=share(
      0.7, 'Weight of the newest speed in the average before the first fit.'
    ),
  ),
  narx=Section(
    'A network with one hidden layer, from past speeds and factors.',
    lags=count(3, 'Past speeds and factors among the inputs (d).'),
    hidden=count(16, 'Width of the tanh layer.'),
    **_training(steps=8, weight_decay=0.03),
  ),
  rnn=Section(
    'A simple recurrent network.',
    window=count(4, 'Observations that the network reads.'),
    hidden=count(8, "Width of the cell's state."),
    **_training(steps=4, weight_decay=0.1),
  ),
  lstm=Section(
    'A long short-term memory.',
    window=count(5, 'Observations that the network reads.'),
    hidden=count(8, "Width of the cell's state."),
    **_training(steps=4, weight_decay=0.1),
  ),
)

BATCHING = Section(
  'How much does each worker compute?',
  name=Field('fixed', 'Module of batching/, or your own.'),
  own=Section(),
  worker_batch=count(
    16,
    'Batch of a worker in an iteration (X0), or in one of its local steps; the '
    'initial one if batches change.',
    unit='examples',
  ),
  local_steps=count(
    1,
    "Steps of config.optimizer in an iteration (H), on the worker's own copy; "
    'if there are several, config.outer applies the displacement.',
  ),
  micro_batch=count(
    128,
    'Most examples that are computed at once, a power of two.',
    unit='examples',
    needs=('model',),
  ),
  fixed=Section('The same batch for all workers, always.'),
  lb_bsp=Section(
    'LB-BSP: batches in proportion to predicted speeds.',
    threshold=fraction(
      0.02,
      "Share of a superstep's predicted time that a change of batches must "
      'save.',
    ),
    unit=Field(
      'examples',
      "Unit of the division: 'examples', or 'steps' for whole local steps.",
      choices=('examples', 'steps'),
    ),
    least=count(1, 'Fewest units of a worker.'),
    most=_most('units'),
    predictor=_PREDICTOR,
  ),
  lb_bsp_gpu=Section(
    'LB-BSP by measured curves of time over batch, or by trial.',
    curves=Field(
      '',
      'Files of tools.profile, comma-separated: one, or one per '
      "worker; '' to find batches by trial.",
      file='files',
    ),
    smoothing=share(
      0.2, "With curves: weight of the newest iteration in a curve's scale."
    ),
    window=count(
      5, 'Without curves: initial number of supersteps between two changes.'
    ),
    step=count(
      4,
      'Without curves: initial number of examples that a change moves.',
      unit='examples',
    ),
    threshold=fraction(
      0.05,
      "With curves: share of a superstep's predicted time that a change must "
      "save.  Without: share of the slowest worker's time that separates it "
      'from the fastest before examples move.',
    ),
    least=count(1, 'Fewest examples of a worker.', unit='examples'),
    most=_most(),
  ),
  r2sp=Section(
    'Workers that would wait compute more examples instead.',
    window=Field(
      10, 'Iterations of every worker from one tuning to the next.', at_least=3
    ),
    history=count(10, 'Windows that are averaged, the newest.'),
    most=_most(),
  ),
  r2sp_released=Section(
    "The rule of the authors' released code, which diverges.",
    window=count(
      10,
      'Iterations of a worker from one tuning to the next, at least `recent`.',
    ),
    recent=count(5, 'Waiting times that are averaged, the newest of a window.'),
    threshold=fraction(
      0.1,
      "Share of an iteration's time that the mean waiting time must exceed.",
    ),
    most=_most(),
  ),
)
