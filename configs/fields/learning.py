"""Fields of precision, optimizer, outer optimizer, staleness and schedule."""

import math

from configs.fields.field import (
  Field,
  Section,
  count,
  decay,
  fraction,
  nonnegative,
  positive,
  weight_decay,
)

_REDUCTIONS = ('sum', 'mean', 'barrier_mean')
_NESTEROV = "Whether momentum is Nesterov's."
_B1 = decay(0.9, 'Decay of the mean gradient.')
_B2 = decay(0.999, 'Decay of the mean squared gradient.')
_EPS = positive(1e-8, 'Term added to the root of the mean squared gradient.')
_OUTER_MOMENTUM = Field(0.9, 'Decay of the momentum.', above=0, below=1)

PRECISION = Section(
  'In which precision do layers compute?  Parameters, sums, norms and losses '
  'are float32.',
  ('model',),
  dtype=Field(
    'float32',
    'Type of activations.',
    choices=('float32', 'bfloat16', 'float16'),
  ),
  matmul=Field(
    'float32',
    'Precision of float32 products and convolutions on accelerators, forward '
    "and backward: 'tensorfloat32' and 'bfloat16' round their operands.  CPUs "
    'always multiply in float32.',
    choices=('float32', 'tensorfloat32', 'bfloat16'),
  ),
  loss_scaling=Field(
    '',
    "Loss scaling, required with float16: 'dynamic', or 'none'.",
    choices=('', 'dynamic', 'none'),
  ),
  grow_after=count(
    2000,
    'Consecutive gradients without overflow after which a dynamic scale '
    'doubles.',
  ),
)

OPTIMIZER = Section(
  'How are parameters updated?',
  ('model',),
  name=Field('sgd', 'Function of learning/optimizer.py.'),
  learning_rate=positive(0.015, 'Step size before schedule and reduction.'),
  clip_norm=positive(
    math.inf,
    "Largest norm of an update's mean gradient; inf for no clipping.",
    infinite=True,
  ),
  reduction=Field(
    'sum',
    "Factor of an update's step, for x examples in its pushes: 'sum' x / X0; "
    "'mean' x / (n X0) for n workers; 'barrier_mean' x / (m X0) for m pushes.",
    choices=_REDUCTIONS,
  ),
  sgd=Section(
    'Stochastic gradient descent.',
    momentum=decay(0.0, 'Decay of the momentum.'),
    nesterov=Field(False, _NESTEROV),
    weight_decay=weight_decay(0.0, 'gradients'),
  ),
  adamw=Section(
    'Adam with decoupled weight decay.',
    b1=_B1,
    b2=_B2,
    eps=_EPS,
    weight_decay=weight_decay(1e-4, 'steps'),
  ),
  muon=Section(
    'Orthogonal steps for matrices, AdamW for embeddings and vectors.',
    momentum=decay(0.95, 'Decay of the mean gradient.'),
    nesterov=Field(True, _NESTEROV),
    iterations=count(5, 'Iterations of Newton and Schulz.'),
    rms=positive(
      0.2,
      "Root mean square of a matrix's step at rate 1; AdamW's is about 0.2.",
    ),
    b1=_B1,
    b2=_B2,
    eps=_EPS,
    weight_decay=weight_decay(1e-4, 'steps'),
  ),
  lars=Section(
    'Steps of layers in proportion to the norms of their parameters.',
    momentum=decay(0.9, 'Decay of the momentum.'),
    nesterov=Field(False, _NESTEROV),
    weight_decay=weight_decay(1e-4, 'gradients'),
    trust_coefficient=positive(
      1e-3,
      "Norm of a layer's step over the norm of its parameters, at rate 1.",
    ),
    skip_vectors=Field(
      False,
      'Whether biases and scales are neither adapted nor decayed, as is usual '
      'for large batches.',
    ),
  ),
)

OUTER = Section(
  'How are displacements applied, if there are several local steps?',
  ('model', 'local steps'),
  name=Field('sgd', 'Function of learning/outer.py.'),
  learning_rate=positive(1.0, 'Step size.'),
  reduction=Field(
    'mean', 'As config.optimizer.reduction.', choices=_REDUCTIONS
  ),
  sgd=Section('Without momentum.'),
  nesterov=Section("Nesterov's momentum.", momentum=_OUTER_MOMENTUM),
  delayed_nesterov=Section(
    "Nesterov's momentum, applied once in `delay` updates.",
    momentum=_OUTER_MOMENTUM,
    delay=count(
      4,
      'Updates between two that apply momentum, usually the number of workers.',
    ),
  ),
)

STALENESS = Section(
  'How much weight does a stale push get?  Staleness is the number of versions '
  'applied since its pull.',
  ('model',),
  name=Field('constant', 'Function of learning/staleness.py.'),
  constant=Section('As much as any push.'),
  polynomial=Section(
    '(1 + staleness)^-exponent.',
    exponent=Field(0.5, 'Exponent.', above=0, at_most=4),
  ),
)

SCHEDULE = Section(
  'How does the learning rate change, by examples of the whole cluster?',
  ('model',),
  name=Field('constant', 'Function of learning/schedule.py.'),
  warmup_epochs=nonnegative(0.0, 'Length of a linear warm-up.', unit='epochs'),
  counts=Field(
    'examples',
    "Unit of progress: 'examples', or 'updates' as in many papers.",
    choices=('examples', 'updates'),
  ),
  constant=Section('The same rate, always.'),
  step=Section(
    'The rate drops at given epochs.',
    epochs=positive(
      (), 'Epochs at which the rate drops, increasing.', unit='epochs'
    ),
    factor=positive(0.1, 'Factor of each drop.'),
  ),
  cosine=Section(
    'Half a period of a cosine, over the whole run.',
    final=fraction(0.0, 'Final rate over the initial one.'),
  ),
)
