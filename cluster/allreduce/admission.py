"""Messages of allreduce workers to the coordinator, beside heartbeats.

  ready          with the addresses of its executor and its handover
  told 'formed'  it is connected to the others of a generation: generation,
                 version and digest of its learner; and what it has sent
  told 'broken'  it has lost one of them: generation, peer, reason; it is the
                 peer itself if its executor cannot take part
  told 'stopped' it has given a generation up: generation, version, and the
                 books of the last iteration that it has applied
  told 'checked' generation, version and digest of its learner; and what it has
                 sent
  told 'compared' generation, version and digest of its learner, after it was
                 told to compare its state with the reference; difference
  told 'answered' what it was told to measure: number, answer, problem
  told 'traffic' what it has sent to each other worker from the start, and for
                 how long something was on its way; again and again, if links
                 are followed

The worker in the process of the coordinator tells of each iteration, too, without a
message:

  told 'completed'  generation, version before it, books, at (monotonic s)

And the threads that have links measured, and that pack another forest:

  told 'measured'  see `links.survey`
  told 'packed'    see `links.adaptation`
"""

from typing import Any

from cluster.membership import checked
from cluster.membership.admission import Reception
from cluster.probing.measurer import ANSWERED
from cluster.probing.traffic import TRAFFIC


def _is_list(value: Any) -> bool:
  return isinstance(value, list) and all(map(checked.is_number, value))


_OF_GENERATION: checked.Fields = {
  'generation': checked.is_count,
  'version': checked.is_count,
}
_DIGEST: checked.Fields = {'digest': checked.is_text}


class AllreduceReception(Reception):
  """Talks to all workers."""

  _words = checked.OF_WORKERS | {
    'ready': {
      **checked.OF_WORKERS['ready'],
      'executor': checked.is_address,
      'handover': checked.is_address,
    },
    'event': {'event': lambda value: False},  # See `_told`.
  }
  _told = {
    'formed': {**_OF_GENERATION, **_DIGEST, **TRAFFIC},
    'checked': {**_OF_GENERATION, **_DIGEST, **TRAFFIC},
    'compared': {
      **_OF_GENERATION,
      **_DIGEST,
      'difference': lambda value: value is None or checked.is_number(value),
    },
    'answered': ANSWERED,
    'traffic': TRAFFIC,
    'stopped': {**_OF_GENERATION, 'books': _is_list},
    'broken': {
      'generation': checked.is_count,
      'peer': lambda value: value is None or checked.is_count(value),
      'reason': checked.is_text,
    },
  }
