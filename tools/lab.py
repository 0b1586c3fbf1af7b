"""Runs several hosts on one machine, with links shaped by the kernel.

  python -m tools.lab --hosts=5 --link=200mbit [--links=FILE]
    [--congestion=cubic] [--slow_start_after_idle] -- COMMAND ...
  python -m tools.lab --exec=HOST -- COMMAND ...
  python -m tools.lab --clean

The first command creates a lab of host0, host1 and so on, runs COMMAND once on
host0, removes the lab and exits with COMMAND's code.  The environment of
COMMAND has SYNCOPATE_HOSTS, the names of the hosts separated by commas, and
SYNCOPATE_LAB, the name of the lab.  The second command, or
`launch.lab.command`, runs COMMAND on another host: from inside the lab, or from
anywhere with SYNCOPATE_LAB set to the name that the first one has printed.
Processes that still run in the lab when COMMAND ends receive SIGTERM, and
SIGKILL 3 seconds later.

FILE describes the links that differ from --link, as JSON:

  {"hosts": {"host1": {"up": "100mbit", "down": "50mbit"}},
   "pairs": [{"from": "host0", "to": "host2", "rate": "10mbit"}],
   "groups": [{"hosts": ["host3", "host4"], "up": "50mbit", "down": "50mbit",
               "delay_ms": 25}]}

Traffic into or out of a group shares a link with these rates, which delays it
in each direction; traffic within the group does not.  Groups may be nested.

Hosts share files, processes and users with the machine, but have their own
names, /etc/hosts and an isolated network (see launch/hosts.py).  Labs
need root.  A lab lists its namespaces in /run/syncopate-lab-NAME.json before it
creates them, and removes them at its end, after an error and on SIGINT, SIGTERM
and SIGHUP; --clean removes the namespaces of killed labs.  Only /run/netns
remains, the folder that `ip netns` creates for all its users.
"""

import os
import pathlib
import sys

from absl import app, flags

from configs import paths
from configs.checks import require
from launch import hosts, lab


def main(argv: list[str]) -> None:
  """Runs the command, or removes labs, as the flags say."""
  values = flags.FLAGS
  try:
    valid = values.clean == (len(argv) == 1)
    require(valid, 'command', 'one after --, none with --clean', argv[1:])
    if values.clean:
      lab.clean()
      return
    if values.exec:
      words = lab.command(values.exec, argv[1:])
      os.execvp(words[0], words)
    text = _text(values.links) if values.links else '{}'
    tcp = values.congestion, values.slow_start_after_idle
    links = hosts.parse_links(values.hosts, values.link, text, *tcp)
    sys.exit(lab.run(links, argv[1:]))
  except ValueError as error:
    sys.exit(f'Refused: {error}')


def _text(path: str) -> str:
  try:
    return pathlib.Path(path).read_text(encoding='utf-8-sig')
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(f'links: expected a JSON file, got {error}.') from error


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer('hosts', 2, 'Number of hosts, 2 to 250.')
  flags.DEFINE_string(
    'link', '1gbit', 'Rate of every link each way, 8kbit to 100gbit.'
  )
  paths.define_path(
    'links', 'JSON file of the links that differ; none by default.'
  )
  flags.DEFINE_string(
    'congestion', 'cubic', "TCP's congestion control, by the kernel's name."
  )
  flags.DEFINE_bool(
    'slow_start_after_idle',
    False,
    "Enable TCP's slow start after idle periods, Linux's default.",
  )
  flags.DEFINE_string(
    'exec',
    None,
    'Host of a running lab for the command, such as host1; by default host0 of '
    'a new lab.',
  )
  flags.DEFINE_bool('clean', False, 'Remove the namespaces of killed labs.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
