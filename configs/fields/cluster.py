"""Fields of config.cluster."""

import math

from configs.fields.field import (
  Bps,
  Field,
  Section,
  count,
  fraction,
  natural,
  nonnegative,
  port,
  positive,
  seconds,
)

_PER_WORKER = 'one value, or one per worker'
_PER_SERVER = 'one value, or one per server'


def _latency(default: float, doc: str) -> Field:
  return Field((default,), doc, at_least=0, unit='seconds')


def _sigma(default: float, doc: str) -> Field:
  return nonnegative(default, f'Standard deviation of {doc}.')


_SPEED = Section(
  'Simulated compute time of an iteration: max(least_s, fixed_s + '
  'per_example_s * batch) * slowdown * factor.',
  injected=Field(
    False,
    'Whether real workers wait until the simulated compute time is over.',
    needs=('real',),
  ),
  name=Field('lognormal', 'Model of the factor.'),
  fixed_s=seconds(0.02, 'Time that does not depend on the batch.'),
  per_example_s=seconds(0.0025, 'Time per example.'),
  least_s=seconds(0.0, 'Least time, before the slowdown.'),
  slowdown=positive(
    (1.0, 1.5, 2.0, 3.0), f'Multiplier of the time: {_PER_WORKER}.'
  ),
  layers=Field(
    '',
    'Times at which gradients of layers become ready: a file of '
    "tools.profile; 'roofline(MODEL, BATCH)' for 'alexnet' or "
    "'resnet50', computed from shapes; or '' for times in proportion to their "
    'bytes, over the last two thirds of the compute time.',
    file='links',
  ),
  constant=Section('A factor of 1.'),
  lognormal=Section(
    'Independent lognormal factors of mean 1.',
    sigma=_sigma(0.1, "the factor's logarithm"),
  ),
  regime=Section(
    'A Markov chain per worker.',
    factors=positive((1.0, 3.0), 'Factors of its states, at least two.'),
    stay=fraction(0.98, 'Probability of staying in a state, per iteration.'),
    sigma=_sigma(0.0, 'the logarithm of additional lognormal jitter'),
    noise=_sigma(0.0, 'noise in the driving factor that workers report'),
  ),
  trace=Section(
    'Recorded iteration times.',
    path=Field('', 'CSV file with a header.', file='file'),
    worker_column=Field('worker', 'Column of the worker.'),
    order_column=Field('time', 'Column that orders the rows of a worker.'),
    value_column=Field('batch_time_norm', 'Column of the iteration times.'),
    driving_columns=Field(
      '', "Columns of driving factors, comma-separated; '' for none."
    ),
  ),
)

_NETWORK = Section(
  'Simulated links.',
  worker_up_Bps=Bps((125e6,), f'What a worker sends: {_PER_WORKER}.'),
  worker_down_Bps=Bps((125e6,), f'What a worker receives: {_PER_WORKER}.'),
  worker_latency_s=_latency(
    1e-4, f'Latency of a worker, one way: {_PER_WORKER}.'
  ),
  island_Bps=Bps(
    (math.inf,),
    'Inside an island (hosts_per_worker): what each of its processes sends and '
    f'receives; {_PER_WORKER}.',
    needs=('island',),
  ),
  island_latency_s=Field(
    (0.0,),
    f'Time of a message inside an island; {_PER_WORKER}.',
    at_least=0,
    unit='seconds',
    needs=('island',),
  ),
  range_s=seconds(
    0.0,
    'Overhead of a bucket in an allreduce: time for which it holds its links '
    'before its bytes are sent.',
  ),
  share_sigma=_sigma(
    0.0,
    'the logarithm of the weight of 100 kB, in unequal shares of concurrent '
    'pushes and pulls on a link, as of TCP; 0 for equal shares',
  ),
  burst_bytes=nonnegative(
    0.0,
    'What pushes and pulls a link lets pass at once after a pause, as the '
    'token bucket of a traffic shaper does.',
    unit='bytes',
  ),
  server_up_Bps=Bps((125e6,), f'What a server sends: {_PER_SERVER}.'),
  server_down_Bps=Bps((125e6,), f'What a server receives: {_PER_SERVER}.'),
  server_latency_s=_latency(
    1e-4, f'Latency of a server, one way: {_PER_SERVER}.'
  ),
  servers_in_workers=Field(
    False, "Whether server k shares the links of worker k's host."
  ),
)

_REAL_HOSTS = {
  'min_workers': natural(
    0,
    'Fewest workers with which a run starts; others join later.  0 for all.',
    needs=('real',),
  ),
  'timeout_s': positive(
    10.0,
    'Time without a heartbeat after which a process counts as failed.',
    unit='seconds',
    needs=('real',),
  ),
  'start_s': positive(
    300.0,
    'Time within which all processes connect.',
    unit='seconds',
    needs=('real',),
  ),
  'interface': Field(
    'lo',
    'Network to listen on: an interface, an address, or addresses such as '
    "'10.0.0.0/8' or 'fd00::/8'.",
    needs=('real',),
    is_local=True,
  ),
  'port': port(
    0,
    'First of the ports to listen on: process k listens on this one + k, '
    'workers before dedicated servers, unless --coordinator gives it; 0 for '
    'free ones.',
    needs=('real',),
    is_local=True,
  ),
  'token_file': Field(
    '',
    "File of a secret that all processes share; '' for 'token' in the run "
    'folder.',
    file='unread',
    needs=('real',),
    is_local=True,
  ),
  'certificate_file': Field(
    '',
    "PEM file of the certificate of all servers; '' for no encryption.",
    file='unread',
    needs=('real',),
    is_local=True,
  ),
  'key_file': Field(
    '',
    "PEM file of the certificate's private key.",
    file='unread',
    needs=('real',),
    is_local=True,
  ),
  'tls_name': Field(
    '',
    "Host name in the certificate; '' for the address of the connection.",
    needs=('real',),
    is_local=True,
  ),
  'faults': Field(
    (),
    'Injected faults: ((worker, iteration, kind), ...), optionally with a '
    'phase as a fourth value; see cluster/process/faults.py.',
    items=None,
    needs=('real',),
  ),
}

CLUSTER = Section(
  'Which workers are there, and how fast are they and their links?',
  runtime=Field(
    'virtual',
    "'virtual': simulated time, one process; 'distributed': real hosts.",
    choices=('virtual', 'distributed'),
  ),
  workers=count(4, 'Number of data-parallel workers (n).'),
  devices_per_worker=count(
    1,
    "Devices that split each worker's batch, on the same host; a power of two.",
    needs=('model',),
    is_local=True,
  ),
  hosts_per_worker=count(
    1,
    'Processes of a worker (P), on one host or several: an island; a power of '
    'two.  If they are simulated, they divide its batch, and the slowest sets '
    'its time.',
  ),
  island_sharding=Field(
    'replicated',
    "Parameters and inner optimizer state of an island: 'replicated' on all "
    "devices, or divided over them, 'fsdp'.",
    choices=('replicated', 'fsdp'),
  ),
  workers_per_gpu=count(
    1,
    'Workers that share a GPU and its memory, on the same host.',
    needs=('real', 'model'),
    is_local=True,
  ),
  script=Field(
    (),
    "Simulated leaves and joins: ((seconds, 'leave' or 'join', worker), ...).",
    items=None,
    needs=('virtual',),
  ),
  **_REAL_HOSTS,
  speed=_SPEED,
  network=_NETWORK,
  server=Section(
    'Work of the servers of a virtual cluster; inf: it takes no time.',
    sum_Bps=Bps(math.inf, 'What is added to an update of a push.'),
    update_Bps=Bps(
      math.inf, 'What is updated of parameters and optimizer slots.'
    ),
  ),
  worker=Section(
    'Work of the workers of a virtual cluster besides computing.',
    codec_Bps=Bps(
      math.inf,
      'float32 parameters of which a worker decodes a pull and encodes a push; '
      'inf: that takes no time.',
    ),
    sum_Bps=Bps(
      math.inf,
      'What a worker adds in an allreduce; inf: that takes no time.',
    ),
    evaluation_s=seconds(
      0.0,
      'Time of worker 0 that an evaluation takes, or of the servers if they '
      'have hosts of their own.',
    ),
  ),
  links=Field(
    '',
    'Links among workers, in place of the up and down links around one switch: '
    "a file, or a builder such as 'ring(8, 25)'.  Latencies stay.",
    file='links',
  ),
)
