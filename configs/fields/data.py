"""Fields of config.data."""

from configs.fields.field import (
  Field,
  Need,
  Section,
  count,
  natural,
  nonnegative,
  share,
)

_MODEL: tuple[Need, ...] = ('model',)
_PIXELS = 'Height and width of images.'

DATA = Section(
  'Which data is it trained on?',
  name=Field('digits', 'Module of data/, or your own.', needs=_MODEL),
  own=Section(),
  dir=Field(
    '',
    "Folder of data files; '' for $SYNCOPATE_DATA.",
    file='unread',
    needs=_MODEL,
  ),
  ahead=natural(
    2,
    'Iterations for which a worker prefetches examples, at most: fewer if the '
    "workers' iterations would have more examples than an epoch.",
  ),
  crop_padding=natural(
    0,
    'Augmentation of training images: largest random shift.',
    unit='pixels',
    needs=_MODEL,
  ),
  crop_area=share(
    1.0,
    'Augmentation: smallest share of an image in a crop of random size; 0.08 '
    'is usual.',
    needs=_MODEL,
  ),
  flip=Field(
    False,
    'Augmentation: whether half of the images are mirrored; not for digits.',
    needs=_MODEL,
  ),
  digits=Section(
    'Handwritten digits of scikit-learn.',
    _MODEL,
    fold=Field(0, 'Fifth of the data for testing.', at_least=0, at_most=4),
    validation=Field(
      False,
      'Whether the next fifth is for testing and the fold for nothing: to '
      'choose settings of a fold without it.',
    ),
  ),
  cifar10=Section(
    'CIFAR-10.',
    _MODEL,
    file=Field(
      'cifar-10-python.tar.gz',
      'The official archive, or an .npz of encoded images.',
      file='data',
    ),
  ),
  cifar100=Section(
    'CIFAR-100.',
    _MODEL,
    file=Field('cifar-100-python.tar.gz', 'The official archive.', file='data'),
  ),
  fashion_mnist=Section(
    'Fashion-MNIST.',
    _MODEL,
    folder=Field('fashion-mnist', 'Folder of its IDX files.', file='idx'),
  ),
  imagenet=Section(
    'ImageNet.',
    _MODEL,
    folder=Field(
      'imagenet', 'Folder of train/CLASS and val/CLASS.', file='photographs'
    ),
    pixels=count(224, _PIXELS, unit='pixels'),
  ),
  folder=Section(
    'Images of your own.',
    _MODEL,
    folder=Field(
      'images',
      'Folder of train/CLASS and test/CLASS, or val/CLASS: .png, .jpg.',
      file='images',
    ),
    pixels=count(32, _PIXELS, unit='pixels'),
  ),
  arrays=Section(
    'Arrays of your own.',
    _MODEL,
    file=Field(
      'arrays.npz',
      'An .npz of train_inputs, train_targets, test_inputs and test_targets.',
      file='data',
    ),
  ),
  text=Section(
    'The bytes of a text.',
    _MODEL,
    file=Field(
      '',
      "Any file, whose bytes are the tokens; '' for Python's manual.",
      file='text',
    ),
    length=count(128, 'Length of an example.', unit='bytes'),
    test_share=Field(
      0.1,
      'Share of the file for testing, at its end.',
      above=0,
      below=1,
    ),
  ),
  tokens=Section(
    'Token ids.',
    _MODEL,
    file=Field('train.bin', 'Token ids, without a header.', file='data'),
    test_file=Field(
      '',
      "File for testing, of the same type; '' for the end of the other one.",
      file='data',
    ),
    test_tokens=count(2**20, 'Tokens for testing, at most.', unit='tokens'),
    dtype=Field(
      'uint16',
      'Type of token ids, little-endian.',
      choices=('uint16', 'uint32'),
    ),
    vocabulary=Field(
      50257, "Bound of token ids, which are below; GPT-2's.", at_least=2
    ),
    separator=Field(
      50256,
      'Token id at the start of each document.  Attention never crosses it.  '
      '-1: no such token.',
      at_least=-1,
    ),
    length=count(1024, 'Length of an example.', unit='tokens'),
    bytes_per_token=nonnegative(
      0.0,
      'Mean bytes of text per token, for bits per byte; 0 if unknown.',
      unit='bytes',
    ),
  ),
  synthetic=Section(
    'Random images of classes, for tests.',
    _MODEL,
    num_train=count(1024, 'Training examples.'),
    num_test=count(256, 'Test examples.'),
    pixels=count(32, _PIXELS, unit='pixels'),
    channels=count(3, 'Channels of a pixel.'),
    num_classes=count(10, 'Classes, of equal size.'),
  ),
)
