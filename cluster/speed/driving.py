"""Driving factors: free shares of a worker's host.

A worker's speed depends on them, and they are known before an iteration, when
its speed is not: Chen et al., 'Semi-dynamic load balancing: efficient
distributed learning in non-dedicated environments', SoCC 2020.
"""

import collections
import time

import psutil

from system import clock, threads

NAMES = ('cpu', 'memory')
_PERIOD_S = 0.02  # Between samples; the kernel's counters tick every 10 ms.
_WINDOW_S = 0.1  # Over which a share of the processors is measured.


class Driving:
  """Sampler of this host's load, in a thread of its own; use as a context."""

  def __init__(self) -> None:
    """Samples once, as the reference of the first `read`."""
    count = round(_WINDOW_S / _PERIOD_S) + 1
    self._samples = collections.deque([_sample()], maxlen=count)
    self._cores = psutil.cpu_count()
    self._closed = threads.Event()
    self._thread = threads.Thread(target=self._follow, daemon=True)

  def __enter__(self) -> 'Driving':
    self._thread.start()
    return self

  def __exit__(self, *error: object) -> None:
    self._closed.set()
    self._thread.join()

  def read(self) -> tuple[float, ...]:
    """Returns the current factors, in the order of `NAMES`.

    cpu: Share of the host's processors, 0 to 1, that other processes and other
    machines on it have left in the last tenth of a second.  memory: Share of
    the host's memory, 0 to 1, that programs can still get.
    """
    start, before_s = self._samples[0]
    now, after_s = _sample()
    # A pause between two samples could be shorter than a tick of the counters.
    elapsed_s = max(now - start, _PERIOD_S)
    others = (after_s - before_s) / (elapsed_s * self._cores)
    memory = psutil.virtual_memory()
    return min(max(1 - others, 0.0), 1.0), memory.available / memory.total

  def _follow(self) -> None:
    while not self._closed.wait(_PERIOD_S):
      self._samples.append(_sample())


def _sample() -> tuple[float, float]:
  """Returns the time, and the CPU time of other processes, seconds."""
  times = psutil.cpu_times()._asdict()
  # Idle time, and guests, which are part of user and nice.
  left_out = ('idle', 'iowait', 'guest', 'guest_nice')
  busy_s = sum(s for name, s in times.items() if name not in left_out)
  return clock.monotonic(), busy_s - time.process_time()
