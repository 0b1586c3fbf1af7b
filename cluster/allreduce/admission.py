"""Messages of allreduce workers to the coordinator, besides heartbeats.

  ready      addresses of the worker's executor and handover
  formed     connected to the members of an epoch: epoch, version and digest of
             its learner; its traffic
  broken     lost a connection to a member: epoch, peer, reason; the peer is the
             worker itself if its executor cannot take part
  stopped    stopped an epoch: epoch, version, and the step statistics of the
             last iteration that it has applied
  checked    epoch, version and digest of its learner; its traffic
  compared   compared its state with the reference: epoch, version, digest
             afterwards, difference
  answered   result of a link measurement: number, answer, problem
  traffic    bytes sent to each other worker since the start, and seconds during
             which some were on their way; sent repeatedly if links are followed

The worker in the coordinator's process reports each iteration, without a
message:

  completed  version before it, step statistics, time (monotonic seconds)

Threads that have links measured, and that pack another forest, report:

  measured   see `cluster.probing.surveyor`
  packed     see `cluster.probing.follower`
"""

from typing import Any

from cluster.membership import checked
from cluster.membership.admission import Reception
from cluster.probing.measurer import ANSWERED
from cluster.probing.traffic import TRAFFIC


def _is_list(value: Any) -> bool:
  return isinstance(value, list) and all(map(checked.is_number, value))


_OF_EPOCH: checked.Fields = {
  'generation': checked.is_count,
  'version': checked.is_count,
}
_DIGEST: checked.Fields = {'digest': checked.is_text}


class AllreduceReception(Reception):
  """Control streams to the workers of an allreduce run."""

  _words = dict(checked.OF_WORKERS) | {
    'ready': {
      **checked.OF_WORKERS['ready'],
      'executor': checked.is_address,
      'handover': checked.is_address,
    },
    'event': {'event': lambda value: False},  # See `_told`.
  }
  _told = {
    'formed': {**_OF_EPOCH, **_DIGEST, **TRAFFIC},
    'checked': {**_OF_EPOCH, **_DIGEST, **TRAFFIC},
    'compared': {
      **_OF_EPOCH,
      **_DIGEST,
      'difference': lambda value: value is None or checked.is_number(value),
    },
    'answered': ANSWERED,
    'traffic': TRAFFIC,
    'stopped': {**_OF_EPOCH, 'books': _is_list},
    'broken': {
      'generation': checked.is_count,
      'peer': lambda value: value is None or checked.is_count(value),
      'reason': checked.is_text,
    },
  }
