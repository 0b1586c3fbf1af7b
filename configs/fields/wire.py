"""Fields of config.wire."""

from configs.fields.field import (
  Field,
  Section,
  count,
  decay,
  positive,
  seed,
)

_DTYPE = Field(
  'float32',
  "Type of sent numbers: 'float32', or 'bfloat16' or 'float16' to round them; "
  'sums are in float32.',
  choices=('float32', 'bfloat16', 'float16'),
)

WIRE = Section(
  'What is sent?',
  name=Field('dense', 'Module of wire/, or your own.'),
  own=Section(),
  dense=Section('All numbers.', dtype=_DTYPE),
  sparse=Section(
    'The chunks of the gradient with the largest norms; the rest is kept as '
    'residual and added to the next gradient.',
    dtype=_DTYPE,
    sparsity=decay(0.9, 'Share of the chunks that is not sent.'),
    chunk=count(32768, 'Numbers in a chunk.'),
    correction=Field(
      'masked',
      "Momentum of numbers that were not sent: 'none' treats their gradient as "
      "zero; 'masked' leaves their momentum unchanged; with 'local' workers "
      'apply momentum, instead of the optimizer.',
      choices=('none', 'masked', 'local'),
    ),
    momentum=decay(0.0, "Momentum of correction 'local', above 0; else 0."),
    select_lag=Field(
      0,
      '1 to choose chunks by the residual of the iteration before, else 0.',
      choices=(0, 1),
    ),
    warmup=Field(
      (),
      'Sparsities of the first epochs, increasing, at most `sparsity`.',
      at_least=0,
      below=1,
    ),
    warmup_epochs=positive(1.0, 'Length of each of them.', unit='epochs'),
  ),
  topk=Section(
    'The numbers of largest magnitude; the rest is kept as residual.',
    sparsity=decay(0.99, 'Share of the numbers that is not sent.'),
  ),
  quantised=Section(
    'Integers of few bits, with a scale per chunk.',
    bits=Field(8, 'Bits of an integer.', choices=(8, 4, 2)),
    chunk=count(2048, 'Numbers that share a scale.'),
    error_feedback=Field(
      True,
      'Whether rounding is to nearest, with errors kept as residual; False: '
      'random.',
    ),
    seed=seed(0, 'Seed of random rounding.'),
  ),
  lowrank=Section(
    'Low-rank factors of matrices (PowerSGD); the rest is kept as residual.',
    rank=count(4, 'Rank of the factors.'),
  ),
)
