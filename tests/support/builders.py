"""Builders of forests that misbehave, for other processes."""

import os
import pathlib
import signal
import sys
import time

from route import ring


def build_without_jax(cluster, size_bytes, latency_s=0.0):
  """Returns the ring in order; fails if JAX is loaded."""
  if {'jax', 'flax'} & {*sys.modules}:
    raise ValueError('JAX is loaded.')
  return ring.build_in_order(cluster, size_bytes, latency_s)


def build_never(cluster, size_bytes, latency_s=0.0):
  """Sleeps; writes its process into the file that the environment names."""
  if path := os.environ.get('BUILDER_FILE'):
    file = pathlib.Path(path)
    file.with_suffix('.new').write_text(str(os.getpid()))
    file.with_suffix('.new').rename(file)
  time.sleep(600.0)


def die(cluster, size_bytes, latency_s=0.0):
  """Kills its process."""
  os.kill(os.getpid(), signal.SIGKILL)


def refuse(cluster, size_bytes, latency_s=0.0):
  """Finds no forest."""
  raise ValueError('There is none.')
