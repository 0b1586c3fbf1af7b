"""Settings of every test: devices, nothing compiled twice, one NumPy thread.

Tests, and the processes that they start, compute on the CPU, whatever the host
has.  `pytest -m gpu` runs those that need a GPU, on it.  If the environment has
SYNCOPATE_FAKE_GPU=1, all tests have the fake accelerator of `tests/support` as
JAX's default device.
"""

import atexit
import gc
import os
import pathlib
import runpy
import shutil
import signal
import tempfile

import pytest

_FAKE = pathlib.Path(__file__).parent / 'support/fake_gpu'
_GPU = 'SYNCOPATE_TESTS_GPU'  # Set in a run of the tests that need one.

# All that tests leave is in one folder, which goes with the process that has
# made it.  Workers of one test run inherit it.
if 'SYNCOPATE_TESTS' not in os.environ:
  _folder = tempfile.mkdtemp(prefix='syncopate-')
  os.environ['SYNCOPATE_TESTS'] = os.environ['TMPDIR'] = _folder
  tempfile.tempdir = _folder
  atexit.register(shutil.rmtree, _folder, ignore_errors=True)
# Before JAX is imported, for this process and those that tests start.
_cache = os.path.join(tempfile.gettempdir(), 'jax')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', _cache)
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
# Processes that tests start write bytecode, as by default: one that finds none
# compiles 170 modules, for a tenth of the processor time of a short run.
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
# Several tests run at a time: threads of each would wait for one another.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
# JAX allocates so much that 700, the default, means a search at all times.
gc.set_threshold(10_000)
# Signals that are ignored, as SIGINT is in the background, are so in processes
# that are started; those that are handled are not, and tests send them.
for _number in (signal.SIGINT, signal.SIGHUP):
  if signal.getsignal(_number) == signal.SIG_IGN:
    signal.signal(_number, lambda *_: None)


def pytest_configure(config):
  """Chooses JAX's devices, before it is imported."""
  if config.option.markexpr == 'gpu':
    os.environ[_GPU] = '1'
    # Processes that tests start share the GPU with this one.
    os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  if os.environ.get('SYNCOPATE_FAKE_GPU'):
    os.environ.pop('JAX_PLATFORMS', None)
    os.environ['CUDA_VISIBLE_DEVICES'] = ''  # Real ones take no part.
    runpy.run_path(str(_FAKE / 'sitecustomize.py'))  # Here; then in others.
    paths = [str(_FAKE), os.environ.get('PYTHONPATH')]
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
  elif _GPU not in os.environ:
    os.environ['JAX_PLATFORMS'] = 'cpu'


def pytest_collection_finish(session):
  """Leaves modules and test cases, which stay, out of searches for garbage."""
  del session
  gc.collect()
  gc.freeze()


def pytest_runtest_setup(item):
  """Skips tests that need a GPU where JAX computes on none."""
  if item.get_closest_marker('gpu') is None:
    return
  if not {_GPU, 'SYNCOPATE_FAKE_GPU'} & os.environ.keys():
    pytest.skip('needs a GPU: `pytest -m gpu` (make gpu) runs it')
  import jax

  if jax.default_backend() == 'cpu':
    pytest.skip('needs a GPU, and JAX sees none')
