"""Wall time, accuracy and accounts of the six schemes at their defaults.

  python -m bench.training [--seeds=1]

Each scheme's VGG16 config is run as main.py would run it, on digits.
"""

import argparse
import importlib
import tempfile

import train

_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp')


def main(argv: list[str] | None = None) -> None:
  """Prints one row per scheme and seed."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--seeds', type=int, default=1)
  parser.add_argument('--schemes', nargs='*', default=_SCHEMES)
  arguments = parser.parse_args(argv)
  rows = []
  for name in arguments.schemes:
    for seed in range(arguments.seeds):
      config = importlib.import_module(f'configs.vgg16_{name}').get_config()
      config.seed = seed
      summary = train.build(config, workdir=f'{tempfile.mkdtemp()}/run')()
      rows.append((name, seed, summary))
  print('scheme   seed accuracy virtual s   to 90 %   to 95 % waiting  wall s')
  for name, seed, summary in rows:
    times = [
      f'{reached:9.1f}' if reached is not None else '        -'
      for reached in summary['time_to'].values()
    ]
    print(
      f'{name:8} {seed:4} {summary["final_accuracy"]:8.2%} '
      f'{summary["virtual_s"]:9.1f} {" ".join(times)} '
      f'{summary["waiting_share"]:7.1%} {summary["wall_s"]:7.1f}'
    )


if __name__ == '__main__':
  main()
