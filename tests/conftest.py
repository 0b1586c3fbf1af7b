"""Settings of every test: nothing is compiled twice, one thread for NumPy."""

import os
import tempfile

# Before JAX is imported, for this process and those that tests start.  Workers
# of one test run inherit the folder of the process that started them.
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', tempfile.mkdtemp())
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
# Several tests run at a time: threads of each would wait for one another.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
