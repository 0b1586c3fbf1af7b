"""Relations between the fields of a config, each of which is in its range."""

import os

from ml_collections import ConfigDict

from configs.sections import iteration_steps

# Numbers of tasks, as set by srun, Open MPI, and other mpiruns.
_TASKS = ('SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE')


def check_relations(config: ConfigDict) -> None:
  """Checks relations between fields that no part checks itself.

  Args:
    config: Config that `sections.check_fields` has passed.

  Raises:
    ValueError: If a value does not suit another one, or if several tasks were
      started for a virtual run, which is one process.
  """
  virtual = config.cluster.runtime == 'virtual'
  for variable in _TASKS if virtual else ():
    if os.environ.get(variable, '1') not in ('', '0', '1'):
      raise ValueError(
        "config.cluster.runtime: expected one process for 'virtual', got "
        f'{os.environ[variable]} by {variable}.'
      )
  least, workers = config.cluster.min_workers, config.cluster.workers
  if least > workers:
    raise ValueError(
      'config.cluster.min_workers: expected 0 to config.cluster.workers, '
      f'{workers}, got {least}.'
    )
  devices, most = config.cluster.devices_per_worker, config.batching.micro_batch
  if devices > most or devices & (devices - 1):
    raise ValueError(
      'config.cluster.devices_per_worker: expected a power of two up to '
      f'config.batching.micro_batch, {most}, got {devices}.'
    )
  _check_islands(config)
  wire, optimizer = config.wire, config.optimizer
  if wire.name == 'sparse' and wire.sparse.correction == 'local':
    reason = "as config.wire.sparse.correction is 'local': workers apply it"
    if optimizer.name != 'sgd' or optimizer.sgd.momentum:
      raise ValueError(
        f"config.optimizer: expected 'sgd' without momentum, {reason}, got "
        f'{optimizer.name!r} with {optimizer[optimizer.name].to_dict()}.'
      )
  if config.batching.local_steps > 1:
    _check_local_steps(config)
  elif optimizer.name == 'muon':
    valid = wire.name != 'sparse' or wire.sparse.correction == 'none'
    if not valid:
      raise ValueError(
        "config.wire.sparse.correction: expected 'none', as steps of "
        "config.optimizer.name 'muon' are of whole matrices, got "
        f'{wire.sparse.correction!r}.'
      )
  _check_fragments(config)
  precision = config.precision
  half = precision.dtype != 'float32'
  if half and precision.matmul != 'float32':
    raise ValueError(
      "config.precision.matmul: expected the default 'float32', because with "
      f'config.precision.dtype {precision.dtype!r} there are no float32 '
      f'products, got {precision.matmul!r}.'
    )


def _check_islands(config: ConfigDict) -> None:
  """Checks the fields of workers that are several processes."""
  cluster, most = config.cluster, config.batching.micro_batch
  hosts = cluster.hosts_per_worker
  if hosts & (hosts - 1) or hosts * cluster.devices_per_worker > most:
    raise ValueError(
      'config.cluster.hosts_per_worker: expected a power of two, and with '
      'config.cluster.devices_per_worker up to config.batching.micro_batch, '
      f'{most}, devices, got {hosts}.'
    )
  sharding = cluster.island_sharding
  if hosts == 1:
    if sharding != 'replicated':
      raise ValueError(
        "config.cluster.island_sharding: expected 'replicated', as "
        f'config.cluster.hosts_per_worker is 1, got {sharding!r}.'
      )
    return
  if cluster.runtime == 'distributed' and config.model.name == 'none':
    raise ValueError(
      'config.cluster.hosts_per_worker: expected 1, as config.model.name is '
      f"'none', and the processes of an island compute gradients, got {hosts}."
    )
  if cluster.workers_per_gpu > 1:
    raise ValueError(
      'config.cluster.workers_per_gpu: expected 1, as '
      f'config.cluster.hosts_per_worker is {hosts}: NCCL refuses a GPU twice, '
      f'got {cluster.workers_per_gpu}.'
    )
  if config.route.name == 'native':
    raise ValueError(
      'config.cluster.hosts_per_worker: expected 1, as config.route.name is '
      "'native', whose processes jax.distributed has joined already, got "
      f'{hosts}.'
    )


def _check_local_steps(config: ConfigDict) -> None:
  """Checks fields that several local steps exclude."""
  reason = f'as config.batching.local_steps is {config.batching.local_steps}'
  reduction = config.optimizer.reduction
  if reduction != 'sum':
    raise ValueError(
      f"config.optimizer.reduction: expected the default 'sum', {reason}: "
      f'config.outer.reduction takes its place, got {reduction!r}.'
    )
  precision = config.precision
  if precision.dtype == 'float16' or precision.loss_scaling == 'dynamic':
    raise ValueError(
      f"config.precision.dtype: expected 'float32' or 'bfloat16', {reason}: "
      f'displacements have no loss scale, got {precision.dtype!r} with '
      f'loss_scaling {precision.loss_scaling!r}.'
    )
  correction = config.wire.sparse.correction
  if config.wire.name == 'sparse' and correction == 'local':
    raise ValueError(
      f"config.wire.sparse.correction: expected 'masked' or 'none', {reason}: "
      f'momentum is corrected in gradients alone, got {correction!r}.'
    )


def _check_fragments(config: ConfigDict) -> None:
  """Checks fields of fragments that depend on the local steps alone."""
  route, steps = config.route, config.batching.local_steps
  reason = f'as config.batching.local_steps is {steps}'
  if steps % route.fragments:
    raise ValueError(
      f'config.route.fragments: expected a divisor of the local steps, {reason}'
      f', got {route.fragments}.'
    )
  between = iteration_steps(config) if steps > 1 else 0
  if route.overlap_steps > between:
    raise ValueError(
      f'config.route.overlap_steps: expected 0 to {between}, the local steps '
      f'from one fragment to the next, {reason} and config.route.fragments is '
      f'{route.fragments}, got {route.overlap_steps}.'
    )
  if route.blend and steps == 1:
    raise ValueError(
      f'config.route.blend: expected the default 0.0, {reason}: workers have '
      f'no parameters of their own, got {route.blend}.'
    )
