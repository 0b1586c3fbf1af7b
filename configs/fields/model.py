"""Fields of config.model."""

from configs.fields.field import (
  Field,
  Section,
  count,
  decay,
  natural,
  positive,
)

_HIDDEN_DROPOUT = 'Dropout rate of the hidden dense layers.'


def _width(default: float = 1.0) -> Field:
  return positive(default, 'Multiplier of all widths.')


def _norm(default: str) -> Field:
  return Field(
    default, 'Normalisation of layers.', choices=('group', 'batch', 'none')
  )


MODEL = Section(
  'Which network is trained?',
  name=Field('vgg', "Module of models/, your own, or 'none'."),
  own=Section(),
  init=Field(
    '',
    'File of parameters to start from, of `tools.checkpoint RUN '
    "--export=FILE`; '' to draw them by the seed.",
    file='file',
    needs=('model',),
  ),
  none=Section(
    'No model: simulates time alone, for any number of workers.',
    size_bytes=count(
      100_000_000, 'Size of the parameters, in float32.', unit='bytes'
    ),
    num_train=count(50_000, 'Examples of an epoch.'),
  ),
  vgg=Section(
    'VGG.',
    depth=Field(16, 'Number of layers.', choices=(11, 16, 19)),
    width=_width(0.125),
    dropout=decay(0.0, _HIDDEN_DROPOUT),
  ),
  alexnet=Section(
    'AlexNet.',
    width=_width(),
    norm=_norm('none'),
    dropout=decay(0.5, _HIDDEN_DROPOUT),
  ),
  resnet=Section(
    'ResNet.',
    depth=Field(
      20,
      'Number of layers: 20, 32 or 110 (CIFAR), or 50 (bottleneck).',
      choices=(20, 32, 50, 110),
    ),
    width=_width(),
    norm=_norm('group'),
  ),
  inception_v3=Section(
    'Inception v3.',
    width=_width(),
    norm=_norm('group'),
    dropout=decay(0.2, 'Dropout rate before the last layer.'),
  ),
  transformer=Section(
    'A decoder-only language model.',
    size=Field(
      'tiny', 'Published size.', choices=('tiny', '10M', '30M', '124M')
    ),
    layers=natural(
      0, 'Blocks of attention and dense layers; 0 for those of the size.'
    ),
    width=natural(0, 'Width of token embeddings; 0 for that of the size.'),
    heads=natural(
      0,
      'Attention heads, which split the width; 0 for those of the size.',
    ),
    dropout=decay(0.0, 'Dropout rate of embeddings and layers.'),
  ),
  mlp=Section(
    'Dense layers.',
    hidden=Field((128,), 'Widths of the hidden layers.', at_least=1, items=int),
  ),
)
