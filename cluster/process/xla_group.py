"""Groups of processes that XLA joins: those of jax.distributed.

A process joins at most one group, before XLA starts.  The coordination service
of the group checks no token, and neither do gloo and NCCL.  It listens on one
address.  If the run has a certificate, it and its clients authenticate each
other with that (mutual TLS), which JAX has since version 0.12; gloo and NCCL
encrypt nothing.
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from absl import logging

from configs.checks import require

_CERTIFICATE = 'config.cluster.certificate_file'


class Tls(NamedTuple):
  """Files by which the processes of a group authenticate each other.

  Attributes:
    certificate_file: PEM file of the certificate that all processes present,
      and which they trust.
    key_file: PEM file of the certificate's private key.
  """

  certificate_file: str
  key_file: str


def find_tls(cluster: Any) -> Tls | None:
  """Returns the files of mutual TLS; None for a run without a certificate.

  Args:
    cluster: `config.cluster`.

  Raises:
    ValueError: If the run has a certificate, and JAX cannot use it; names the
      field.
  """
  if not cluster.certificate_file:
    return None
  initialize = inspect.signature(jax.distributed.initialize)
  expected = (
    f"'' with route.name='native' or islands, as JAX {jax.__version__} would "
    'join the processes without TLS; JAX 0.12, which needs Python 3.12, would '
    'not'
  )
  has_tls = 'mtls_cert_file' in initialize.parameters
  require(has_tls, _CERTIFICATE, expected, cluster.certificate_file)
  expected = (
    f'the key of {cluster.certificate_file} in each process, as JAX joins them '
    'with mutual TLS'
  )
  has_key = bool(cluster.key_file)
  require(has_key, 'config.cluster.key_file', expected, cluster.key_file)
  expected = (
    "'' with route.name='native' or islands, whose certificate has to name the "
    'address, as JAX compares it with that'
  )
  name = cluster.tls_name
  require(not name, 'config.cluster.tls_name', expected, name)
  return Tls(cluster.certificate_file, cluster.key_file)


def has_joined() -> bool:
  """Returns whether this process is in a group."""
  return bool(jax.distributed.is_initialized())


def join(
  address: str,
  *,
  listen: str,
  count: int,
  index: int,
  devices: Sequence[int],
  start_s: float,
  tls: Tls | None,
) -> None:
  """Joins all other processes of a group.

  JAX's detection of clusters is off: under SLURM and Open MPI it would take the
  GPU whose index is the local rank, whether this process owns it or not.  Its
  preemption service is off, as it would handle SIGTERM.

  Args:
    address: Address 'host:port' of the coordination service.
    listen: Numeric address 'host:port' at which the service listens, in process
      0; '' in all others.
    count: Number of processes.
    index: Index of this one.
    devices: Positions of this process's GPUs among those that it sees; none on
      CPUs.
    start_s: Seconds within which all have to join; otherwise JAX ends this
      process with SIGABRT.
    tls: Files of mutual TLS; None for a service that takes all clients.
  """
  how = 'with mutual TLS' if tls else 'without a token'
  logging.info('XLA meets at %s, %s.', address, how)
  options: dict[str, Any] = {}
  if tls:
    options = {
      'mtls_cert_file': tls.certificate_file,
      'mtls_key_file': tls.key_file,
      'mtls_ca_file': tls.certificate_file,
    }
  jax.config.update('jax_enable_preemption_service', False)
  jax.distributed.initialize(
    address,
    count,
    index,
    local_device_ids=[*devices],
    cluster_detection_method='deactivate',
    initialization_timeout=max(round(start_s), 1),
    coordinator_bind_address=listen or None,
    **options,
  )
