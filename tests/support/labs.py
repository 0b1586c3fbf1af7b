"""Labs (see `tools.lab`) that exist for the duration of a test."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.support import commands

_LIMIT_S = 60.0
# Commands of a lab, in namespaces that end with the test.
_PROBE = """unshare --net --uts --mount sh -ec '
  mount --bind /etc/hosts /etc/hosts
  ip link add name br0 type bridge
  ip link add name veth0 type veth peer name veth1
  tc qdisc add dev veth0 root handle 1: htb default 1
  tc class add dev veth0 parent 1: classid 1:1 htb rate 1mbit
  tc filter add dev veth0 parent 1: u32 match u32 0 0 flowid 1:1
  ip addr add 10.213.0.1/24 dev veth0 noprefixroute
  ip link set veth0 up
  ip route add 10.213.0.0/24 dev veth0 congctl cubic'
"""


@contextlib.contextmanager
def start(hosts: int) -> Iterator[str]:
  """Creates a lab; removes it at the end, with all processes in it.

  Args:
    hosts: Number of hosts, which are named host0, host1 and so on.

  Yields:
    The name of the lab, for `lab.command`.

  Raises:
    ProcessError: If this machine cannot have a lab.
  """
  argv = [sys.executable, '-m', 'tools.lab', f'--hosts={hosts}', '--']
  forever = ['sleep', 'infinity']
  with commands.start([*argv, *forever], grace_s=_LIMIT_S) as process:
    yield name_in(process.until('SYNCOPATE_LAB=').string)


def name_in(text: str) -> str:
  """Returns the name of the lab that has printed a text."""
  return re.search('syn-[0-9a-f]{6}', text)[0]


def why_not() -> str:
  """Returns the reason why this machine cannot have a lab; '' if it can."""
  if os.geteuid() != 0:
    return 'Labs need root.'
  done = subprocess.run(_PROBE, shell=True, capture_output=True, text=True)
  return done.stderr if done.returncode else ''
