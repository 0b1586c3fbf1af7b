"""Replays transfers in SimGrid, for the system's Python, which may have it.

  /usr/bin/python3 tests/support/simgrid_replay.py SCHEDULES ENDS

SCHEDULES is JSON, a list of schedules with

  links      bytes per second of each link
  transfers  rows of `links` (numbers of the links that it occupies at once),
             `bytes` (an integer), `at` (least start, seconds) and `after`
             (numbers of the transfers that must have ended before)

ENDS gets the end of each transfer, seconds, by schedule.  Links are shared
max-min fairly (model CM02, without its corrections for TCP) and have no
latency.  Schedules do not share links, so that one simulation has all of them.
"""

import json
import pathlib
import sys

import simgrid

_FLAGS = (
  'network/model:CM02',
  'network/TCP-gamma:0',
  'network/crosstraffic:0',
  'network/bandwidth-factor:1',
  'network/latency-factor:1',
  'network/weight-S:0',
)


class Replay:
  """A schedule, whose transfers start each other.

  Attributes:
    ends: End of each transfer, seconds.
  """

  def __init__(self, engine, zone, name, schedule):
    self._engine, self._transfers = engine, schedule['transfers']
    self.ends = [0.0] * len(self._transfers)
    self._left = [len(each['after']) for each in self._transfers]
    self._next = [[] for _ in self._transfers]
    for number, each in enumerate(self._transfers):
      for before in each['after']:
        self._next[before].append(number)
    links = [
      zone.create_link(f'{name}.{number}', float(Bps)).seal()
      for number, Bps in enumerate(schedule['links'])
    ]
    # Hosts of its own for each set of links: the route between them.
    self._ends = {}
    for each in self._transfers:
      key = tuple(each['links'])
      if key not in self._ends:
        ends = [
          zone.create_host(f'{name}.{len(self._ends)}.{end}', 1e9).seal()
          for end in ('src', 'dst')
        ]
        self._ends[key] = ends
        route = [simgrid.LinkInRoute(links[number]) for number in key]
        points = [end.netpoint for end in ends]
        zone.add_route(*points, None, None, route, False)
    for number, left in enumerate(self._left):
      if not left:
        self._start(number)

  def _start(self, number):
    src, _ = self._ends[tuple(self._transfers[number]['links'])]
    simgrid.Actor.create(f'{number}', src, self._transfer, number)

  def _transfer(self, number):
    transfer = self._transfers[number]
    src, dst = self._ends[tuple(transfer['links'])]
    simgrid.this_actor.sleep_until(transfer['at'])
    simgrid.Comm.sendto_async(src, dst, transfer['bytes']).wait()
    self.ends[number] = simgrid.Engine.clock
    for other in self._next[number]:
      self._left[other] -= 1
      if not self._left[other]:
        self._start(other)


def main(schedules, ends):
  """Replays the schedules of a file, and writes the ends to another one."""
  flags = [f'--cfg={flag}' for flag in _FLAGS]
  engine = simgrid.Engine(['replay', '--log=root.thresh:error', *flags])
  zone = simgrid.NetZone.create_full_zone('all')
  replays = [
    Replay(engine, zone, f'{number}', schedule)
    for number, schedule in enumerate(
      json.loads(pathlib.Path(schedules).read_text())
    )
  ]
  zone.seal()
  engine.run()
  pathlib.Path(ends).write_text(json.dumps([each.ends for each in replays]))


if __name__ == '__main__':
  main(*sys.argv[1:])
