"""Measures compute times of a model on this device, for the simulator.

  python -m tools.profile --of=batches --config=FILE.py --out=FILE.json
    [--batches=1,2,3,4,6,8,...] [--rounds=9] [--plot=FILE.png]
  python -m tools.profile --of=layers --config=FILE.py --out=FILE.json
    [--batch=N] [--rounds=15]

The model and the data are those of the config.  With --of=batches FILE.json has
the compute times of batches and a curve through them, a value for
config.batching.lb_bsp_gpu.curves.  With --of=layers it has the times at which
the gradient of each layer is ready in an iteration, a value for
config.cluster.speed.layers; these are exact only on CPUs.
"""

import sys
from collections.abc import Sequence

from absl import app, flags

from configs import config_file, paths, sections
from configs.checks import require
from tools.profiling import batches, layers

# Flags that only one kind of profile uses.
_ONLY = {'batches': ('batches', 'plot'), 'layers': ('batch',)}


def main(argv: list[str]) -> None:
  """Measures, writes and draws as the flags describe."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  given = flags.FLAGS
  try:
    for kind, names in _ONLY.items():
      for name in names if kind != given.of else ():
        value = given[name].value
        require(not value, name, f'no value without --of={kind}', value)
    if given.of == 'batches':
      _profile_batches()
    else:
      _profile_layers()
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


def _profile_batches() -> None:
  given = flags.FLAGS
  rounds = 9 if given.rounds is None else given.rounds
  sizes = _numbers(given.batches)
  profile = batches.measure(given.config, batches=sizes, rounds=rounds)
  batches.write(profile, given.out)
  print(batches.describe(profile))
  if given.plot:
    batches.draw(profile, given.plot)


def _profile_layers() -> None:
  given = flags.FLAGS
  rounds = 15 if given.rounds is None else given.rounds
  profile = layers.measure(given.config, batch=given.batch, rounds=rounds)
  layers.write(profile, given.out)
  print(layers.describe(profile))


def _numbers(texts: Sequence[str]) -> list[int]:
  valid = all(text.isdecimal() for text in texts)
  require(valid, 'batches', 'integers', list(texts))
  return [int(text) for text in texts]


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_enum('of', None, [*_ONLY], 'What is measured.', required=True)
  paths.define_path('out', 'JSON file to write.', required=True)
  flags.DEFINE_list('batches', [], 'Sizes of the batches, examples, ascending.')
  flags.DEFINE_integer(
    'batch', None, "Examples of an iteration; the default is the config's."
  )
  flags.DEFINE_integer(
    'rounds',
    None,
    'Number of measurements; the default is 9 for batches, 15 for layers.',
  )
  paths.define_path('plot', 'Picture of the curve: png, svg or pdf.')
  text = (
    'Config of model and data; --config.SECTION.FIELD=VALUE changes a field.'
  )
  with sections.reject_unknown_flags(argv):
    config_file.define_flag(None, text)
    paths.require_config()
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
