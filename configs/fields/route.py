"""Fields of config.route."""

from configs.fields.field import (
  Field,
  Section,
  count,
  decay,
  natural,
  nonnegative,
  port,
  seconds,
)

MOST_LANES = 16  # Largest value of config.route.lanes.
_LINKS = (
  "Links of the cluster: a file; a builder such as 'star([1, 2])'; 'probe' to "
  'measure them at the start, or take measurements of the last 24 hours (under '
  "the virtual clock: the true links); or '' for equal links through one switch"
)


def _links(default: str, more: str = '') -> Field:
  return Field(default, f'{_LINKS}{more}.', file='links')


ROUTE = Section(
  'Where does it travel?',
  name=Field('server', 'Module of route/, or your own.'),
  own=Section(),
  server=Section(
    'To parameter servers and back.',
    servers=natural(
      0,
      'Number of servers, which share the parameters.  0 chooses: on real '
      'hosts one in each worker, or a single one if updates cannot be divided; '
      'a single one under the virtual clock.',
    ),
    dedicated=Field(
      False,
      'Whether servers are processes of their own, not threads of workers.',
      needs=('real',),
    ),
    pipelined=Field(
      False,
      'Whether servers sum and serve each part of the parameters by itself, so '
      'that pulls overlap with pushes; needs bsp.',
    ),
    mirror_s=seconds(
      30.0,
      "Time between two mirrors, on real hosts: copies of the servers' states "
      'in the memory of other processes.  If a process is lost, the others '
      'continue from the last one.  0 takes none: the loss of a server, or of '
      'the coordinator, then restarts all processes from a checkpoint.',
      needs=('real',),
    ),
  ),
  bucket_bytes=nonnegative(
    2.0**20,
    "For all routes but 'server', which sum among the workers and need bsp: "
    'least size of a bucket, which is sent as soon as it is full; 0 sends '
    "tensor by tensor, inf all at once; 'auto' takes the size that is "
    'predicted to be the fastest.',
    unit='bytes',
    infinite=True,
    words=('auto',),
  ),
  overlap=Field(
    True,
    'Whether buckets are sent while other gradients are still being computed.',
  ),
  fragments=count(
    1,
    'Parts of the model that are summed in turn (F), with local steps: each '
    'one every H steps (config.batching.local_steps), H / F steps after the '
    'one before it.  1 sums the whole model.',
  ),
  overlap_steps=natural(
    0, 'Local steps that run while a fragment is in transfer, at most H / F.'
  ),
  blend=decay(
    0.0,
    "Weight of a worker's own parameters when a summed fragment arrives; the "
    'new version has the rest.',
  ),
  lanes=natural(
    0,
    'Lanes, on real hosts: threads that divide what a worker sends and '
    'receives, each with connections of its own.  0 takes one for each '
    '4 Gbit/s of the links and each two cores of a process, 1 to 4.',
    at_most=MOST_LANES,
    needs=('real',),
  ),
  native=Section(
    "XLA's psum: gloo, or NCCL.",
    port=port(
      0,
      'Port of jax.distributed; 0 for the one after those of '
      "config.cluster.port, or, without these, after the coordinator's.",
    ),
    combine_bytes=nonnegative(
      2.0**25,
      'Between accelerators, buckets are combined up to this size; 0 sums each '
      'bucket by itself, as between CPUs.',
      unit='bytes',
      infinite=True,
    ),
  ),
  ring=Section('A ring, in the fastest order.', cluster=_links('')),
  hierarchical=Section(
    'Rings in groups, and between them.',
    cluster=_links('probe', '; with at least two groups of workers'),
  ),
  double_tree=Section('Two binary trees.', cluster=_links('')),
  forest=Section(
    'Trees packed for the links.',
    cluster=_links('probe'),
    adapt=Field(
      False,
      'Whether the forest is replaced during the run when real links change.',
    ),
  ),
  auto=Section(
    'The fastest of ring to forest, by prediction.', cluster=_links('probe')
  ),
)
