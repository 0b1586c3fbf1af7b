"""Settings of every test: nothing is compiled twice, one thread for NumPy."""

import atexit
import os
import shutil
import signal
import tempfile

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
# Several tests run at a time: threads of each would wait for one another.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
# Signals that are ignored, as SIGINT is in the background, are so in processes
# that are started; those that are handled are not, and tests send them.
for _number in (signal.SIGINT, signal.SIGHUP):
  if signal.getsignal(_number) == signal.SIG_IGN:
    signal.signal(_number, lambda *_: None)
