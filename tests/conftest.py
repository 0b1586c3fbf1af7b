"""Settings of every test: devices, compiled programs, examples, order, threads.

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

import hypothesis
import pytest

from tests.support import compiled, requires

_TESTS = pathlib.Path(__file__).parent
_FAKE = _TESTS / 'support/fake_gpu'
_GPU = 'SYNCOPATE_TESTS_GPU'  # Set in a run of the tests that need one.

# Files that take longest.  The process that came to one of them last would work
# alone at the end of a test run.
LONG = (
  'cluster/parameter_server/mirrors_test.py',
  'cluster/process/schedulers_test.py',
  'cluster/process/faults_test.py',
  'cluster/islands/run_test.py',
  'cluster/parameter_server/runtime_test.py',
  'cluster/allreduce/unlike_test.py',
  'cluster/resume_test.py',
  'cluster/allreduce/succession_test.py',
  'cluster/parameter_server/checkpoints_test.py',
  'placement_test.py',
  'main_test.py',
  'sweeps/sweep_test.py',
)

# Examples of Hypothesis: the same in every run, so that a failure is that of a
# change, or with --hypothesis-profile=random new ones (make soak).
hypothesis.settings.register_profile('repeatable', derandomize=True)
hypothesis.settings.register_profile('random', derandomize=False)
hypothesis.settings.load_profile('repeatable')

# All that tests leave is in one folder, which goes with the process that has
# made it, but for compiled programs.  Workers of one test run inherit both.
if 'SYNCOPATE_TESTS' not in os.environ:
  _folder = tempfile.mkdtemp(prefix='syncopate-')
  os.environ['SYNCOPATE_TESTS'] = os.environ['TMPDIR'] = _folder
  tempfile.tempdir = _folder
  atexit.register(shutil.rmtree, _folder, ignore_errors=True)
# Before JAX is imported, for this process and those that tests start.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  _programs = compiled.root(os.environ)
  compiled.prune(_programs, compiled.LIMIT_BYTES)
  _cache = str(_programs / compiled.subfolder())
  os.environ['JAX_COMPILATION_CACHE_DIR'] = _cache
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
  """Checks variables; chooses JAX's devices, before it is imported."""
  try:
    requires.must_run(os.environ)
  except ValueError as error:
    raise pytest.UsageError(str(error)) from error
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


def pytest_collection_modifyitems(items):
  """Puts the files that take longest first; the others keep their order."""
  places = {_TESTS / name: place for place, name in enumerate(LONG)}
  if missing := [path for path in places if not path.exists()]:
    raise pytest.UsageError(f'LONG: expected files, got {missing}')
  items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_runtest_setup(item):
  """Skips tests that need a GPU where JAX computes on none."""
  if item.get_closest_marker('gpu') is not None:
    requires.gpu()
