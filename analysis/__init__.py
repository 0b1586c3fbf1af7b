"""Reading of run folders: tables, pace, figures and verdicts.

`analysis.read(folder)` returns a run, `analysis.pace(run)` the seconds of its
iterations.
"""

from analysis.pacing import Pace, pace
from analysis.runs import Run, Table, read

__all__ = ['Pace', 'Run', 'Table', 'pace', 'read']
