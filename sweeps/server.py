"""The process that forks runs imports this first: it ends when the sweep does.

Otherwise it would live as long as what it has forked.
"""

from sweeps import child

child.die_with_parent()
