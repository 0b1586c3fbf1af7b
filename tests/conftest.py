"""Settings of every test: nothing is compiled twice, one thread for NumPy."""

import os
import signal
import tempfile

# Before JAX is imported, for this process and those that tests start.  Workers
# of one test run inherit the folder of the process that started them.
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', tempfile.mkdtemp())
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
# Several tests run at a time: threads of each would wait for one another.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
# Signals that are ignored, as SIGINT is in the background, are so in processes
# that are started; those that are handled are not, and tests send them.
for _number in (signal.SIGINT, signal.SIGHUP):
  if signal.getsignal(_number) == signal.SIG_IGN:
    signal.signal(_number, lambda *_: None)
