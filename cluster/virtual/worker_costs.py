"""Time that virtual workers take for codecs, sums and evaluations."""

from typing import NamedTuple

from ml_collections import ConfigDict

from configs import sections
from configs.checks import require
from route.route import ParameterServer, Plan

_SUM = 'cluster.worker.sum_Bps'
_EVALUATION = 'config.cluster.worker.evaluation_s'


class WorkerCosts(NamedTuple):
  """Work of the workers besides computing; by default it takes no time.

  Attributes:
    codec_s: Seconds of an iteration in which a worker decodes what it has
      pulled and encodes its push.
    sum_Bps: Bytes per second that a worker adds in an allreduce.
    evaluation_s: Seconds that an evaluation takes.
    evaluates: Whether worker 0 evaluates, in whose process the coordinator is;
      else a server does.
  """

  codec_s: float
  sum_Bps: float
  evaluation_s: float
  evaluates: bool


def make(config: ConfigDict, plan: Plan, num_bytes: int) -> WorkerCosts:
  """Returns the workers' work.

  Args:
    config: Config of the run.
    plan: Plan of the route.
    num_bytes: Bytes of all parameters and running statistics, in float32.

  Raises:
    ValueError: If a value cannot be used: sums without an allreduce,
      evaluations at servers that serve pieces of sums.
  """
  section = config.cluster.worker
  seconds = section.evaluation_s
  has_servers = isinstance(plan, ParameterServer)
  if has_servers:
    reason = "config.route.name is 'server', where servers add,"
    sections.check_default(config, (_SUM,), reason)
  evaluates = not has_servers or config.cluster.network.servers_in_workers
  is_used = evaluates or not config.route.server.pipelined or not seconds
  expected = '0, because config.route.server.pipelined is True'
  require(is_used, _EVALUATION, expected, seconds)
  return WorkerCosts(
    codec_s=num_bytes / section.codec_Bps,
    sum_Bps=section.sum_Bps,
    evaluation_s=seconds,
    evaluates=evaluates,
  )
