"""Measures one rank of PyTorch's gloo: sums, steps of DDP, torchft's DiLoCo.

The program runs under another interpreter, which has torch and NumPy but
nothing of this project: python -P torch_rank.py FOLDER RANK.  FOLDER/task.json
has its jobs, from `bench.lab.running`; FOLDER/RANK.json gets their times.
"""

import functools
import itertools
import json
import math
import os
import pathlib
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel

_MIB = 2**20
_SKIPPED = 3  # First steps; after the first one DDP rebuilds its buckets.
_PREPARE_S = 0.2  # Time until all ranks start a sum together.
_CLASSES, _IMAGE = 10, (3, 32, 32)


def main(folder: str, rank: str) -> None:
  """Runs all jobs together with the other ranks, and writes their times."""
  task = json.loads(pathlib.Path(folder, 'task.json').read_text())
  os.environ |= {
    'MASTER_ADDR': task['address'],
    'MASTER_PORT': str(task['port']),
    'GLOO_SOCKET_IFNAME': task['interface'],
  }
  torch.set_num_threads(task['threads'])
  torch.manual_seed(0)
  dist.init_process_group('gloo', rank=int(rank), world_size=task['ranks'])
  jobs = {'sum': _sum, 'step': _step, 'diloco': _diloco}
  results = []
  for job in task['jobs']:
    dist.barrier()
    results.append(jobs[job.pop('kind')](**job))
  dist.barrier()
  dist.destroy_process_group()
  pathlib.Path(folder, f'{rank}.json').write_text(json.dumps(results))


def _sum(*, bytes: int, rounds: int) -> dict[str, Any]:
  """Returns start and end of float32 sums after the first one, and costs."""
  rank, ranks = dist.get_rank(), dist.get_world_size()
  base = torch.arange(bytes // 4).remainder(1000).float()
  expected = base * ranks + ranks * (ranks - 1) // 2
  times, before = [], _usage()
  for number in range(rounds + 1):
    values = base + rank
    at_s = torch.tensor(time.monotonic() + _PREPARE_S, dtype=torch.float64)
    dist.broadcast(at_s, 0)
    if number == 1:
      before = _usage()
    time.sleep(max(at_s.item() - time.monotonic(), 0.0))
    start_s = time.monotonic()
    dist.all_reduce(values)
    times.append((start_s, time.monotonic()))
    if not torch.equal(values, expected):
      raise RuntimeError('The sum is wrong.')
  return {'rounds': times[1:], **_costs(before, rounds)}


def _step(
  *,
  model: Mapping[str, Any],
  steps: int,
  batch: int,
  bucket_bytes: float | None,
  hook: str,
  rank: int,
) -> dict[str, Any]:
  """Returns the times and costs of steps after the first ones."""
  # Buckets of 0 bytes hold one tensor each; None is DDP's default.  `rank` is
  # PowerSGD's.
  arguments = dict(model)
  models = {'sleeping': _SleepingModel, 'vgg': _vgg, 'mlp': _mlp}
  net = models[arguments.pop('name')](**arguments)
  inputs = torch.randn(batch, *_IMAGE)
  labels = torch.randint(_CLASSES, (batch,))
  alone = None
  if not isinstance(net, _SleepingModel):  # Without DDP, on all hosts at once.
    alone = _measure(lambda: _backward(net, inputs, labels), steps)
    net.zero_grad()
  cap = bucket_bytes
  if cap is not None:  # Between a byte and more than any model.
    cap = min(max(cap, 1.0), 2.0**40) / _MIB
  wrapped = DistributedDataParallel(
    net, bucket_cap_mb=cap, gradient_as_bucket_view=True
  )
  _register(wrapped, hook, rank)
  # A sleeping model has nothing to learn.
  rate = 0.0 if alone is None else 1e-4
  optimizer = torch.optim.SGD(net.parameters(), lr=rate)

  def step() -> None:
    optimizer.zero_grad()
    _backward(wrapped, inputs, labels)
    if rate:
      optimizer.step()

  for _ in range(_SKIPPED):
    step()
  before, computed_s = _usage(), []
  times = [time.monotonic()]
  for _ in range(steps):
    step()
    times.append(time.monotonic())
    if isinstance(net, _SleepingModel):
      computed_s.append(net.computed_s)
  return {
    'steps_s': [b - a for a, b in itertools.pairwise(times)],
    'compute_s': statistics.median(computed_s or alone or [0.0]),
    'parameters': sum(each.numel() for each in net.parameters()),
    **_costs(before, steps),
  }


def _diloco(
  *,
  layers: Sequence[tuple[int, float]],
  seconds: float,
  local_steps: int,
  rounds: int,
) -> dict[str, Any]:
  """Returns the times and costs of rounds of DiLoCo after the first ones."""
  # Each rank is a replica group of its own, and rank 0 has the lighthouse.  A
  # sleep stands for the computation of a local step.  The inner optimizer has
  # one number, so that its steps take no time, and each round moves the
  # parameters by the rank: the sum is known.
  import torchft  # The other jobs do not need it.
  from torchft.coordination import LighthouseServer
  from torchft.local_sgd import DiLoCo

  rank, ranks = dist.get_rank(), dist.get_world_size()
  lighthouse = None
  if rank == 0:
    lighthouse = LighthouseServer(bind='[::]:0', min_replicas=ranks)
  address = [lighthouse and lighthouse.address()]
  dist.broadcast_object_list(address)
  net = nn.Module()
  net.parts = nn.ParameterList(
    nn.Parameter(torch.zeros(size // 4)) for size, _ in layers
  )
  number = nn.Parameter(torch.zeros(1))
  host = socket.gethostname()
  store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
  manager = torchft.Manager(
    pg=torchft.ProcessGroupGloo(),
    load_state_dict=None,
    state_dict=None,
    min_replica_size=ranks,
    use_async_quorum=False,
    rank=0,
    world_size=1,
    store_addr=host,
    store_port=store.port,
    lighthouse_addr=address[0],
    replica_id=f'rank{rank}',
    hostname=host,
    init_sync=False,
  )
  inner = torch.optim.SGD([number], lr=1.0)
  # The result is the mean of the ranks' displacements.
  outer = torch.optim.SGD(net.parameters(), lr=1.0)
  try:
    with DiLoCo(manager, [net], inner, outer, sync_every=local_steps):
      before, times = _usage(), [time.monotonic()]
      for done in range(_SKIPPED + rounds):
        if done == _SKIPPED:
          before, times = _usage(), [time.monotonic()]
        for _ in range(local_steps - 1):
          time.sleep(seconds)
          inner.step()
        time.sleep(seconds)
        with torch.no_grad():
          for part in net.parts:
            part += rank
        inner.step()
        times.append(time.monotonic())
      costs = _costs(before, rounds)
  finally:
    dist.barrier()
    manager.shutdown(wait=False)
    if lighthouse:
      lighthouse.shutdown()
  expected = (_SKIPPED + rounds) * (ranks - 1) / 2
  if not all((part == expected).all() for part in net.parts):
    raise RuntimeError('The mean displacement is wrong.')
  return {
    'steps_s': [b - a for a, b in itertools.pairwise(times)],
    'compute_s': local_steps * seconds,
    'parameters': sum(each.numel() for each in net.parameters()),
    **costs,
  }


def _measure(function: Callable[[], object], times: int) -> list[float]:
  """Returns the seconds of calls after the first ones."""
  took = []
  for _ in range(_SKIPPED + times):
    start_s = time.monotonic()
    function()
    took.append(time.monotonic() - start_s)
  return took[_SKIPPED:]


def _backward(
  net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor
) -> None:
  out = net(inputs)
  if out.dim():
    out = nn.functional.cross_entropy(out, labels)
  out.backward()


def _register(net: DistributedDataParallel, hook: str, rank: int) -> None:
  if hook == 'float16':
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
  elif hook == 'bfloat16':
    net.register_comm_hook(None, default_hooks.bf16_compress_hook)
  elif hook == 'powersgd':
    state = power.PowerSGDState(
      None, matrix_approximation_rank=rank, start_powerSGD_iter=2
    )
    net.register_comm_hook(state, power.powerSGD_hook)
  elif hook != 'none':
    raise ValueError(f'hook: expected a known name, got {hook!r}.')


class _SleepingModel(nn.Module):
  """Layers whose gradients are ready after parts of a sleep.

  Args:
    layers: Bytes of each layer, and the part of the step after which its
      gradient is ready, in the order of the backward pass.
    seconds: Length of the sleep.

  Attributes:
    start_s: Start of the step, on the clock of time.monotonic.
    computed_s: Seconds from the start of the step to the last gradient.
  """

  def __init__(self, layers: Sequence[tuple[int, float]], seconds: float):
    super().__init__()
    # DDP assumes that parameters are registered in the order of the forward
    # pass.
    self.parts = nn.ParameterList(
      nn.Parameter(torch.zeros(size // 4)) for size, _ in reversed(layers)
    )
    self._ready_s = [ready * seconds for _, ready in reversed(layers)]
    self.start_s = self.computed_s = 0.0

  def forward(self, inputs: torch.Tensor) -> torch.Tensor:
    del inputs
    self.start_s = time.monotonic()
    x = torch.zeros((), requires_grad=True)
    for part, ready_s in zip(self.parts, self._ready_s, strict=True):
      x = _Part.apply(x, part, functools.partial(self._wait, ready_s))
    return x

  def _wait(self, ready_s: float) -> None:
    time.sleep(max(self.start_s + ready_s - time.monotonic(), 0.0))
    self.computed_s = time.monotonic() - self.start_s


class _Part(torch.autograd.Function):
  """Identity whose backward pass waits until its gradient is ready."""

  @staticmethod
  def forward(
    ctx: Any, x: torch.Tensor, part: torch.Tensor, wait: Callable[[], None]
  ) -> torch.Tensor:
    ctx.size, ctx.wait = part.shape, wait
    return x.clone()

  @staticmethod
  def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    ctx.wait()
    return gradient, torch.ones(ctx.size), None


def _vgg(blocks: Sequence[Sequence[int]], hidden: int) -> nn.Module:
  parts: list[nn.Module] = []
  features = _IMAGE[0]
  for block in blocks:
    for out in block:
      parts += [nn.Conv2d(features, out, 3, padding=1), nn.ReLU()]
      features = out
    parts.append(nn.MaxPool2d(2))
  features *= (_IMAGE[1] >> len(blocks)) ** 2
  return nn.Sequential(*parts, *_dense(features, [hidden, hidden]))


def _mlp(hidden: Sequence[int]) -> nn.Module:
  return nn.Sequential(*_dense(math.prod(_IMAGE), hidden))


def _dense(features: int, hidden: Sequence[int]) -> list[nn.Module]:
  parts: list[nn.Module] = [nn.Flatten()]
  for out in hidden:
    parts += [nn.Linear(features, out), nn.ReLU()]
    features = out
  return [*parts, nn.Linear(features, _CLASSES)]


def _usage() -> tuple[float, int]:
  """Returns the CPU seconds of this process, and the bytes sent by its host."""
  rows = pathlib.Path('/proc/self/net/dev').read_text().splitlines()[2:]
  sent = {row.split(':')[0].strip(): int(row.split()[9]) for row in rows}
  return time.process_time(), sent.get(os.environ['GLOO_SOCKET_IFNAME'], 0)


def _costs(before: tuple[float, int], times: int) -> dict[str, float]:
  """Returns the CPU seconds and sent bytes per repetition since `before`."""
  now = _usage()
  return {
    'cpu_s': (now[0] - before[0]) / times,
    'sent_bytes': (now[1] - before[1]) / times,
  }


if __name__ == '__main__':
  main(*sys.argv[1:])
