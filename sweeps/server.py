"""First import of the fork server: ties its end to the end of the sweep.

Otherwise the server would live as long as any process that it has forked, or
end by a signal to the sweep's terminal or process group: its processes, the
runs, would then be killed without a checkpoint.
"""

import os

from sweeps import child

child.die_with_parent()
os.setsid()
