"""First import of the fork server: ties its end to the end of the sweep.

Otherwise the server would live as long as any process that it has forked.
"""

from sweeps import child

child.die_with_parent()
