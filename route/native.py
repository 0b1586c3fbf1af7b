"""XLA's psum: gloo between CPUs, NCCL between GPUs.

XLA orders collectives within a program by itself.  The virtual clock simulates
a ring in the order of the workers, after all gradients are computed.
"""

import dataclasses
from typing import TYPE_CHECKING

from configs import declared
from route.route import Allreduce

if TYPE_CHECKING:
  from topology import Cluster


@dataclasses.dataclass(frozen=True)
class NativeRoute:
  """The route over XLA's psum, whose plan does not depend on links."""

  def plan(
    self,
    cluster: 'Cluster | None',
    *,
    num_workers: int,
    distributed: bool,
    divisible: bool,
    bucket_bytes: float | None,
    overlap: bool,
  ) -> Allreduce:
    del cluster, num_workers, distributed, divisible, overlap
    return Allreduce('native', None, None, bucket_bytes, overlap=False)


@declared.check_arguments('route.native')
def make(*, port: int, combine_bytes: float) -> NativeRoute:
  """Returns the route `native`.

  Args:
    port: Port of jax.distributed; 0 for the one after the coordinator's.
    combine_bytes: Smallest collective between accelerators, bytes.

  Raises:
    ValueError: If an argument is out of range.
  """
  return NativeRoute()
