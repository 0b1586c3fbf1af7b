"""Defaults of all config fields: VGG16 at 1/8 width on digits, with BSP.

A section with a `name` chooses one of its sub-sections.  Only the chosen one is
used, and a changed field in another one is an error.  Where there is a section
`own`, the name may be the dotted path of a user's module; `own` then has the
fields of its `make`.
"""

import math
from typing import Any

import ml_collections
from ml_collections import ConfigDict, FieldReference

from configs import user_parts


def get_config() -> ml_collections.ConfigDict:
  """Returns the defaults, locked: a misspelt field is an error."""
  config = ConfigDict()
  # Seed of parameters, data order, dropout and simulated jitter.
  config.seed = 0
  # Whether GPUs use kernels with bit-reproducible results, as CPUs do anyway.
  config.deterministic = True
  # Length of the run, epochs; fractions are allowed.  The same command with
  # more epochs continues a run that has finished.
  config.epochs = 40.0
  config.eval_every = 1.0  # Epochs between evaluations on the test split.
  config.log_every = 100  # Iterations between log rows.
  # Also reports top-k accuracy, for this k; 0 for accuracy alone.
  config.eval_top = 0
  # Also reports the mean loss on the test split; language models always do.
  config.eval_loss = False
  config.time_to = (0.9, 0.95)  # Accuracies whose first time is reported.
  # Losses whose first time is reported: ten iterations in a row below them.
  config.time_to_loss = ()
  # Perplexities whose first time is reported: an evaluation at or below them.
  config.time_to_perplexity = ()
  config.time_to_bits_per_byte = ()  # Bits per byte, likewise.

  # Which optional files does the run write?
  config.outputs = ConfigDict()
  config.outputs.timeline = True  # trace.json: phases of every worker.
  config.outputs.events = True  # events.jsonl: events, for replays.
  config.outputs.board = True  # Files for TensorBoard.
  # Tracking URI of MLflow, such as 'http://host:5000', to which the run is
  # sent, too; '' for none.
  config.outputs.mlflow = ''
  # Port of the coordinator for /metrics and /healthz over HTTP; 0 for none.
  config.outputs.metrics_port = 0

  # When may a worker continue?
  config.sync = ConfigDict()
  config.sync.name = 'bsp'  # Module of sync/, or your own.
  config.sync.own = ConfigDict()
  config.sync.bsp = ConfigDict()
  config.sync.asp = ConfigDict()
  # Seconds in which pushes are merged into one update; 0 for none.
  config.sync.asp.grace_s = 0.0
  config.sync.ssp = ConfigDict()
  config.sync.ssp.bound = 3  # Largest lead, iterations.
  config.sync.ssp.grace_s = 0.0  # As of asp.
  config.sync.dssp = ConfigDict()
  # Lead up to which every worker continues, iterations.
  config.sync.dssp.low = 3
  config.sync.dssp.high = 15  # Largest lead, iterations.
  # Grants of the printed pseudo-code, without a bound; high - low is the most.
  config.sync.dssp.as_printed = False
  config.sync.dssp.grace_s = 0.0  # As of asp.
  config.sync.elastic = ConfigDict()
  config.sync.elastic.lookahead = 15  # Predicted pushes per worker (R).
  # Pushes of every worker before the search for a barrier.
  config.sync.elastic.monitor_pushes = 2
  # Largest lead since the last barrier, iterations; inf for no bound.
  config.sync.elastic.bound = math.inf
  config.sync.quorum = ConfigDict()
  config.sync.quorum.minimum = 2  # Pushes of a round before it can end.
  # Grace window after them, as a share of the round before it.
  config.sync.quorum.grace = 0.25
  config.sync.quorum.late = 'count'  # Or 'drop': the fate of late pushes.
  config.sync.r2sp = ConfigDict()
  # Gap between two releases as a share of T / N (r): T is the average time of
  # an iteration, N the number of workers.
  config.sync.r2sp.relaxation = 0.8
  # Weight of the newest iteration time in the average T.
  config.sync.r2sp.smoothing = 0.1

  # How much does each worker compute?
  config.batching = ConfigDict()
  config.batching.name = 'fixed'  # Module of batching/, or your own.
  config.batching.own = ConfigDict()
  # Examples of a worker's iteration (X0), or of one of its local steps;
  # initially if batches change.
  config.batching.worker_batch = 16
  # Steps of config.optimizer in an iteration (H), on the worker's own copy; if
  # there are several, config.outer applies the displacement.
  config.batching.local_steps = 1
  # Most examples that are computed at once, a power of two.
  config.batching.micro_batch = 128
  config.batching.fixed = ConfigDict()  # The same batch for all, always.
  config.batching.lb_bsp = ConfigDict()  # In proportion to predicted speeds.
  # Share of a superstep's predicted time that a change of batches must save.
  config.batching.lb_bsp.threshold = 0.02
  # Unit of the division: 'examples', or 'steps' for whole local steps.
  config.batching.lb_bsp.unit = 'examples'
  config.batching.lb_bsp.least = 1  # Fewest units of a worker.
  # Most units of a worker: one value, or one per worker; () for no bound.
  config.batching.lb_bsp.most = ()
  # How fast will each worker be?  Unless a comment says otherwise, the values
  # have the least error on bench/recorded.csv, from 40 % to 70 % of each
  # worker's values.  Around them the networks' errors hardly change.
  config.batching.lb_bsp.predictor = ConfigDict()
  predictor = config.batching.lb_bsp.predictor
  predictor.name = 'narx'  # Module of predict/, or your own.
  predictor.own = ConfigDict()
  predictor.last = ConfigDict()
  predictor.ema = ConfigDict()
  predictor.ema.smoothing = 0.7  # Weight of the newest speed.
  predictor.arima = ConfigDict()
  predictor.arima.p = 0  # Number of past values in the model.
  predictor.arima.d = 1  # 1 to model differences of speeds, else 0.
  predictor.arima.q = 1  # Number of past errors in the model.
  # Speeds of a worker that are fitted, the newest; bounds the cost.
  predictor.arima.kept = 300
  # Observations of a worker before its first fit; not tuned.
  predictor.arima.needed = 50
  # Observations of a worker between its fits; bounds the cost.
  predictor.arima.refit = 100
  # Weight of the newest speed in the average that predicts before the fit.
  predictor.arima.smoothing = 0.7
  predictor.narx = ConfigDict()
  predictor.narx.lags = 3  # Past speeds and factors among the inputs (d).
  predictor.narx.hidden = 16  # Width of the tanh layer.
  _add_training(predictor.narx, steps=8, decay=0.03)
  predictor.rnn = ConfigDict()
  predictor.rnn.window = 4  # Observations that the network reads.
  predictor.rnn.hidden = 8  # Width of the cell's state.
  _add_training(predictor.rnn, steps=4, decay=0.1)
  predictor.lstm = ConfigDict()
  predictor.lstm.window = 5  # Observations that the network reads.
  predictor.lstm.hidden = 8  # Width of the cell's state.
  _add_training(predictor.lstm, steps=4, decay=0.1)
  # By measured curves of time over batch, or by trial.
  config.batching.lb_bsp_gpu = ConfigDict()
  # Files of tools.profile, comma-separated: one, or one per worker; ''
  # to find batches by trial.
  config.batching.lb_bsp_gpu.curves = ''
  # With curves: weight of the newest iteration in a curve's scale.
  config.batching.lb_bsp_gpu.smoothing = 0.2
  # Without curves: initial number of supersteps between two changes.
  config.batching.lb_bsp_gpu.window = 5
  # Without curves: initial number of examples that a change moves.
  config.batching.lb_bsp_gpu.step = 4
  # With curves: share of a superstep's predicted time that a change must save.
  # Without: share of the slowest worker's time that separates it from the
  # fastest before examples move.
  config.batching.lb_bsp_gpu.threshold = 0.05
  config.batching.lb_bsp_gpu.least = 1  # Fewest examples of a worker.
  # Most examples of a worker: one value, or one per worker; () for no bound.
  config.batching.lb_bsp_gpu.most = ()
  # Workers that would wait compute more examples instead.
  config.batching.r2sp = ConfigDict()
  # Iterations of every worker from one tuning to the next.
  config.batching.r2sp.window = 10
  config.batching.r2sp.history = 10  # Windows that are averaged, the newest.
  # Most examples of a worker: one value, or one per worker; () for no bound.
  config.batching.r2sp.most = ()
  # The rule of the authors' released code, which diverges.
  config.batching.r2sp_released = ConfigDict()
  # Iterations of a worker from one tuning to the next.
  config.batching.r2sp_released.window = 10
  # Waiting times that are averaged, the newest of a window.
  config.batching.r2sp_released.recent = 5
  # Share of an iteration's time that the mean waiting time must exceed.
  config.batching.r2sp_released.threshold = 0.1
  # Most examples of a worker: one value, or one per worker; () for no bound.
  config.batching.r2sp_released.most = ()

  # What is sent?
  config.wire = ConfigDict()
  config.wire.name = 'dense'  # Module of wire/, or your own.
  config.wire.own = ConfigDict()
  config.wire.dense = ConfigDict()  # All numbers.
  # Type of sent numbers: 'float32', or 'bfloat16' or 'float16' to round them;
  # sums are in float32.
  config.wire.dense.dtype = 'float32'
  # The chunks of the gradient with the largest norms; the rest is kept as
  # residual and added to the next gradient.
  config.wire.sparse = ConfigDict()
  # Type of sent numbers: 'float32', 'bfloat16' or 'float16'.
  config.wire.sparse.dtype = 'float32'
  config.wire.sparse.sparsity = 0.9  # Share of the chunks that is not sent.
  config.wire.sparse.chunk = 32768  # Numbers in a chunk.
  # Momentum of numbers that were not sent: 'none' treats their gradient as
  # zero; 'masked' leaves their momentum unchanged; with 'local' workers apply
  # momentum, instead of the optimizer.
  config.wire.sparse.correction = 'masked'
  config.wire.sparse.momentum = 0.0  # Momentum of correction 'local'.
  # 1 to choose chunks by the residual of the iteration before, else 0.
  config.wire.sparse.select_lag = 0
  config.wire.sparse.warmup = ()  # Sparsities of the first epochs, increasing.
  config.wire.sparse.warmup_epochs = 1.0  # Epochs of each of them.
  # The numbers of largest magnitude; the rest is kept as residual.
  config.wire.topk = ConfigDict()
  config.wire.topk.sparsity = 0.99  # Share of the numbers that is not sent.
  # Integers of few bits, with a scale per chunk.
  config.wire.quantised = ConfigDict()
  config.wire.quantised.bits = 8  # Bits of an integer: 8, 4 or 2.
  config.wire.quantised.chunk = 2048  # Numbers that share a scale.
  # Whether rounding is to nearest, with errors kept as residual; False: random.
  config.wire.quantised.error_feedback = True
  config.wire.quantised.seed = 0  # Seed of random rounding.
  # Low-rank factors of matrices (PowerSGD); the rest is kept as residual.
  config.wire.lowrank = ConfigDict()
  config.wire.lowrank.rank = 4  # Rank of the factors.

  # Where does it travel?
  config.route = ConfigDict()
  config.route.name = 'server'  # Module of route/, or your own.
  config.route.own = ConfigDict()
  config.route.server = ConfigDict()  # To parameter servers and back.
  # Number of servers, which share the parameters.  0 chooses: on real hosts one
  # in each worker, or a single one if updates cannot be divided; a single one
  # under the virtual clock.
  config.route.server.servers = 0
  # Whether servers are processes of their own, not threads of workers.
  config.route.server.dedicated = False
  # Whether servers sum and serve each part of the parameters by itself, so that
  # pulls overlap with pushes; needs bsp.
  config.route.server.pipelined = False
  # Seconds between two mirrors, on real hosts: copies of the servers' states in
  # the memory of other processes.  If a process is lost, the others continue
  # from the last one.  0 takes none: the loss of a server, or of the
  # coordinator, then restarts all processes from a checkpoint.
  config.route.server.mirror_s = 30.0
  # For all routes but 'server', which sum among the workers and need bsp: least
  # bytes of a bucket, which is sent as soon as it is full; 0 sends tensor by
  # tensor, inf all at once; 'auto' takes the size that is predicted to be the
  # fastest.
  config.route.bucket_bytes = FieldReference(2.0**20, field_type=object)
  # Whether buckets are sent while other gradients are still being computed.
  config.route.overlap = True
  # Parts of the model that are summed in turn (F), with local steps: each one
  # every H steps (config.batching.local_steps), H / F steps after the one
  # before it.  1 sums the whole model.
  config.route.fragments = 1
  # Local steps that run while a fragment is in transfer, 0 to H / F.
  config.route.overlap_steps = 0
  # Weight of a worker's own parameters when a summed fragment arrives, at least
  # 0, below 1; the new version has the rest.
  config.route.blend = 0.0
  # Lanes, on real hosts: threads that divide what a worker sends and receives,
  # each with connections of its own.  0 takes one for each 4 Gbit/s of the
  # links and each two cores of a process, 1 to 4.
  config.route.lanes = 0
  config.route.native = ConfigDict()  # XLA's psum: gloo, or NCCL.
  # Port of jax.distributed; 0 for the one after those of config.cluster.port,
  # or, without these, after the coordinator's.
  config.route.native.port = 0
  # Between accelerators, buckets are combined up to this size, bytes; 0 sums
  # each bucket by itself, as between CPUs.
  config.route.native.combine_bytes = 2.0**25
  config.route.ring = ConfigDict()  # A ring, in the fastest order.
  # Links of the cluster, for this route and those below: a file; a builder such
  # as 'star([1, 2])'; 'probe' to measure them at the start, or take
  # measurements of the last 24 hours (under the virtual clock: the true links);
  # or '' for equal links through one switch.
  config.route.ring.cluster = ''
  config.route.hierarchical = ConfigDict()  # Rings in groups, and between them.
  # Links, as for ring, with at least two groups of workers.
  config.route.hierarchical.cluster = 'probe'
  config.route.double_tree = ConfigDict()  # Two binary trees.
  config.route.double_tree.cluster = ''  # Links, as for ring.
  config.route.forest = ConfigDict()  # Trees packed for the links.
  config.route.forest.cluster = 'probe'  # Links, as for ring.
  # Whether the forest is replaced during the run when real links change.
  config.route.forest.adapt = False
  # The fastest of ring to forest, by prediction.
  config.route.auto = ConfigDict()
  config.route.auto.cluster = 'probe'  # Links, as for ring.

  # Which workers are there, and how fast are they and their links?
  config.cluster = ConfigDict()
  # 'virtual': simulated time, one process; 'distributed': real hosts.
  config.cluster.runtime = 'virtual'
  config.cluster.workers = 4  # Number of data-parallel workers (n).
  # Devices that split each worker's batch, on the same host.
  config.cluster.devices_per_worker = 1
  # Processes of a worker (P), on one host or several: an island.  If they are
  # simulated, they divide its batch, and the slowest sets its time.
  config.cluster.hosts_per_worker = 1
  # Parameters and inner optimizer state of an island: 'replicated' on all
  # devices, or divided over them, 'fsdp'.
  config.cluster.island_sharding = 'replicated'
  # Workers that share a GPU and its memory, on the same host.
  config.cluster.workers_per_gpu = 1
  # Simulated leaves and joins: ((seconds, 'leave' or 'join', worker), ...).
  config.cluster.script = ()
  # Fields up to cluster.faults are for real hosts only.  Fewest workers with
  # which a run starts; others join later.  0 for all.
  config.cluster.min_workers = 0
  # Seconds without a heartbeat after which a process counts as failed.
  config.cluster.timeout_s = 10.0
  config.cluster.start_s = 300.0  # Seconds within which all processes connect.
  # Network to listen on: an interface, an address, or addresses such as
  # '10.0.0.0/8' or 'fd00::/8'.
  config.cluster.interface = 'lo'
  # First of the ports to listen on: process k listens on this one + k, workers
  # before dedicated servers, unless --coordinator gives it; 0 for free ones.
  config.cluster.port = 0
  # File of a secret that all processes share; '' for 'token' in the run folder.
  config.cluster.token_file = ''
  # PEM file of the certificate of all servers; '' for no encryption.
  config.cluster.certificate_file = ''
  config.cluster.key_file = ''  # PEM file of the certificate's private key.
  # Host name in the certificate; '' for the address of the connection.
  config.cluster.tls_name = ''
  # Injected faults: ((worker, iteration, kind), ...), optionally with a phase
  # as a fourth value; see cluster/process/faults.py.
  config.cluster.faults = ()
  # Simulated compute time of an iteration, seconds: max(least_s, fixed_s +
  # per_example_s * batch) * slowdown * factor.
  config.cluster.speed = ConfigDict()
  # Whether real workers wait until the simulated compute time is over.
  config.cluster.speed.injected = False
  config.cluster.speed.name = 'lognormal'  # Model of the factor.
  config.cluster.speed.fixed_s = (
    0.02  # Seconds that do not depend on the batch.
  )
  config.cluster.speed.per_example_s = 0.0025  # Seconds per example.
  config.cluster.speed.least_s = 0.0  # Least seconds, before the slowdown.
  # Multiplier of the time: one value, or one per worker.
  config.cluster.speed.slowdown = (1.0, 1.5, 2.0, 3.0)
  # Times at which gradients of layers become ready: a file of
  # tools.profile; 'roofline(MODEL, BATCH)' for 'alexnet' or 'resnet50',
  # computed from shapes; or '' for times in proportion to their bytes, over the
  # last two thirds of the compute time.
  config.cluster.speed.layers = ''
  config.cluster.speed.constant = ConfigDict()  # A factor of 1.
  # Independent lognormal factors of mean 1.
  config.cluster.speed.lognormal = ConfigDict()
  # Standard deviation of the factor's logarithm.
  config.cluster.speed.lognormal.sigma = 0.1
  config.cluster.speed.regime = ConfigDict()  # A Markov chain per worker.
  config.cluster.speed.regime.factors = (1.0, 3.0)  # Factors of its states.
  # Probability of staying in a state, per iteration.
  config.cluster.speed.regime.stay = 0.98
  # Standard deviation of the logarithm of additional lognormal jitter.
  config.cluster.speed.regime.sigma = 0.0
  # Standard deviation of noise in the driving factor that workers report.
  config.cluster.speed.regime.noise = 0.0
  config.cluster.speed.trace = ConfigDict()  # Recorded iteration times.
  config.cluster.speed.trace.path = ''  # CSV file with a header.
  config.cluster.speed.trace.worker_column = 'worker'  # Column of the worker.
  # Column that orders the rows of a worker.
  config.cluster.speed.trace.order_column = 'time'
  # Column of the iteration times.
  config.cluster.speed.trace.value_column = 'batch_time_norm'
  # Columns of driving factors, comma-separated; '' for none.
  config.cluster.speed.trace.driving_columns = ''
  # Simulated links: one value for all hosts of a kind, or one per host.
  config.cluster.network = ConfigDict()
  config.cluster.network.worker_up_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.worker_down_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.worker_latency_s = (1e-4,)  # Seconds, one way.
  # Links inside an island (hosts_per_worker), one value or one per worker:
  # bytes per second that each of its processes sends and receives.
  config.cluster.network.island_Bps = (math.inf,)
  # Seconds of a message on such a link.
  config.cluster.network.island_latency_s = (0.0,)
  # Overhead of a bucket in an allreduce: seconds for which it holds its links
  # before its bytes are sent.
  config.cluster.network.range_s = 0.0
  # Unequal shares of concurrent pushes and pulls on a link, as of TCP: standard
  # deviation of the logarithm of the weight of 100 kB; 0 for equal shares.
  config.cluster.network.share_sigma = 0.0
  # Bytes of pushes and pulls that a link lets pass at once after a pause, as
  # the token bucket of a traffic shaper does.
  config.cluster.network.burst_bytes = 0.0
  config.cluster.network.server_up_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.server_down_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.server_latency_s = (1e-4,)  # Seconds, one way.
  # Whether server k shares the links of worker k's host.
  config.cluster.network.servers_in_workers = False
  # Work of the servers of a virtual cluster; inf: it takes no time.
  config.cluster.server = ConfigDict()
  # Bytes of a push per second that are added to an update.
  config.cluster.server.sum_Bps = math.inf
  # Bytes of parameters and optimizer slots per second that are updated.
  config.cluster.server.update_Bps = math.inf
  # Work of the workers of a virtual cluster besides computing.
  config.cluster.worker = ConfigDict()
  # Bytes of float32 parameters per second of which a worker decodes a pull and
  # encodes a push; inf: that takes no time.
  config.cluster.worker.codec_Bps = math.inf
  # Bytes per second that a worker adds in an allreduce; inf likewise.
  config.cluster.worker.sum_Bps = math.inf
  # Seconds of worker 0 that an evaluation takes, or of the servers if they have
  # hosts of their own.
  config.cluster.worker.evaluation_s = 0.0
  # Links among workers, in place of the up and down links around one switch: a
  # file, or a builder such as 'ring(8, 25)'.  Latencies stay.
  config.cluster.links = ''

  # In which precision do layers compute?  Parameters, sums, norms and losses
  # are float32.
  config.precision = ConfigDict()
  # Type of activations: 'float32', 'bfloat16' or 'float16'.
  config.precision.dtype = 'float32'
  # Precision of float32 products and convolutions on accelerators, forward and
  # backward: 'float32'; or 'tensorfloat32' or 'bfloat16' to round their
  # operands.  CPUs always multiply in float32.
  config.precision.matmul = 'float32'
  # Loss scaling, required with float16: 'dynamic', or 'none'.
  config.precision.loss_scaling = ''
  # Consecutive gradients without overflow after which a dynamic scale doubles.
  config.precision.grow_after = 2000

  # Which network is trained?
  config.model = ConfigDict()
  config.model.name = 'vgg'  # Module of models/, your own, or 'none'.
  config.model.own = ConfigDict()
  # File of parameters to start from, of `tools.checkpoint RUN --export=FILE`;
  # '' to draw them by the seed.
  config.model.init = ''
  # No model: simulates time alone, for any number of workers.
  config.model.none = ConfigDict()
  config.model.none.size_bytes = 100_000_000  # Bytes of float32 parameters.
  config.model.none.num_train = 50_000  # Examples of an epoch.
  config.model.vgg = ConfigDict()
  config.model.vgg.depth = 16  # 11, 16 or 19.
  config.model.vgg.width = 0.125  # Multiplier of all widths.
  config.model.vgg.dropout = 0.0  # Dropout rate of the hidden dense layers.
  config.model.alexnet = ConfigDict()
  config.model.alexnet.width = 1.0  # Multiplier of all widths.
  config.model.alexnet.norm = 'none'  # Or 'group', 'batch'.
  config.model.alexnet.dropout = 0.5  # Dropout rate of the hidden dense layers.
  config.model.resnet = ConfigDict()
  config.model.resnet.depth = 20  # 20, 32, 110 (CIFAR), or 50 (bottleneck).
  config.model.resnet.width = 1.0  # Multiplier of all widths.
  config.model.resnet.norm = 'group'  # Or 'batch', 'none'.
  config.model.inception_v3 = ConfigDict()
  config.model.inception_v3.width = 1.0  # Multiplier of all widths.
  config.model.inception_v3.norm = 'group'  # Or 'batch', 'none'.
  # Dropout rate before the last layer.
  config.model.inception_v3.dropout = 0.2
  config.model.transformer = ConfigDict()
  config.model.transformer.size = 'tiny'  # Or '10M', '30M', '124M'.
  # Blocks of attention and dense layers; 0 for those of the size, as below.
  config.model.transformer.layers = 0
  config.model.transformer.width = 0  # Width of token embeddings.
  config.model.transformer.heads = 0  # Attention heads, which split the width.
  # Dropout rate of embeddings and layers.
  config.model.transformer.dropout = 0.0
  config.model.mlp = ConfigDict()
  config.model.mlp.hidden = (128,)  # Widths of the hidden layers.

  # Which data is it trained on?
  config.data = ConfigDict()
  config.data.name = 'digits'  # Module of data/, or your own.
  config.data.own = ConfigDict()
  config.data.dir = ''  # Folder of data files; '' for $SYNCOPATE_DATA.
  # Iterations for which a worker prefetches examples, at most: fewer if the
  # workers' iterations would have more examples than an epoch.
  config.data.ahead = 2
  # Augmentation of training images; do not mirror digits.
  config.data.crop_padding = 0  # Largest random shift, pixels.
  # Smallest share of an image in a crop of random size; 0.08 is usual.
  config.data.crop_area = 1.0
  config.data.flip = False  # Whether half of the images are mirrored.
  config.data.digits = ConfigDict()
  config.data.digits.fold = 0  # Fifth of the data for testing, 0 to 4.
  # Whether the next fifth is for testing and the fold for nothing: to choose
  # settings of a fold without it.
  config.data.digits.validation = False
  config.data.cifar10 = ConfigDict()
  # The official archive, or an .npz of encoded images.
  config.data.cifar10.file = 'cifar-10-python.tar.gz'
  config.data.cifar100 = ConfigDict()
  config.data.cifar100.file = 'cifar-100-python.tar.gz'  # The official one.
  config.data.fashion_mnist = ConfigDict()
  # Folder of its IDX files.
  config.data.fashion_mnist.folder = 'fashion-mnist'
  config.data.imagenet = ConfigDict()
  # Folder of train/CLASS and val/CLASS.
  config.data.imagenet.folder = 'imagenet'
  config.data.imagenet.pixels = 224  # Height and width of images, pixels.
  config.data.folder = ConfigDict()
  # Folder of train/CLASS and test/CLASS, or val/CLASS: .png, .jpg.
  config.data.folder.folder = 'images'
  config.data.folder.pixels = 32  # Height and width of images, pixels.
  config.data.arrays = ConfigDict()
  # An .npz of train_inputs, train_targets, test_inputs and test_targets.
  config.data.arrays.file = 'arrays.npz'
  config.data.text = ConfigDict()
  # Any file, whose bytes are the tokens; '' for Python's manual.
  config.data.text.file = ''
  config.data.text.length = 128  # Bytes of an example.
  # Share of the file for testing, at its end.
  config.data.text.test_share = 0.1
  config.data.tokens = ConfigDict()
  config.data.tokens.file = 'train.bin'  # Token ids, without a header.
  # File for testing, of the same type; '' for the end of the other one.
  config.data.tokens.test_file = ''
  config.data.tokens.test_tokens = 2**20  # Tokens for testing, at most.
  config.data.tokens.dtype = 'uint16'  # Or 'uint32', little-endian.
  config.data.tokens.vocabulary = 50257  # Ids are below; GPT-2's by default.
  # Id that begins a document, apart from which it is read; -1 for none.
  config.data.tokens.separator = 50256
  config.data.tokens.length = 1024  # Tokens of an example.
  # Bytes of text per token in the mean, for bits per byte; 0 if unknown.
  config.data.tokens.bytes_per_token = 0.0
  config.data.synthetic = ConfigDict()
  config.data.synthetic.num_train = 1024  # Training examples.
  config.data.synthetic.num_test = 256  # Test examples.
  config.data.synthetic.pixels = 32  # Height and width of images, pixels.
  config.data.synthetic.channels = 3  # Channels of a pixel.
  config.data.synthetic.num_classes = 10  # Classes of equal size.

  # When are checkpoints saved?
  config.checkpoint = ConfigDict()
  # Wall time between checkpoints, seconds; inf for none.
  config.checkpoint.every_s = 60.0
  config.checkpoint.every_examples = 0  # Examples between them; 0 for none.
  config.checkpoint.keep = 2  # Number of checkpoints that are kept, the newest.

  # How are parameters updated?
  config.optimizer = ConfigDict()
  config.optimizer.name = 'sgd'  # Function of learning/optimizer.py.
  config.optimizer.learning_rate = 0.015  # Before schedule and reduction.
  # Largest norm of an update's mean gradient; inf for no clipping.
  config.optimizer.clip_norm = math.inf
  # Factor of an update's step, for x examples in its pushes: 'sum' x / X0;
  # 'mean' x / (n X0) for n workers; 'barrier_mean' x / (m X0) for m pushes.
  config.optimizer.reduction = 'sum'
  config.optimizer.sgd = ConfigDict()
  config.optimizer.sgd.momentum = 0.0  # Decay of the momentum.
  config.optimizer.sgd.nesterov = False  # Whether momentum is Nesterov's.
  # Multiple of the parameters that is added to gradients.
  config.optimizer.sgd.weight_decay = 0.0
  config.optimizer.adamw = ConfigDict()
  config.optimizer.adamw.b1 = 0.9  # Decay of the mean gradient.
  config.optimizer.adamw.b2 = 0.999  # Decay of the mean squared gradient.
  config.optimizer.adamw.eps = 1e-8  # Term added to the root of the latter.
  # Multiple of the parameters that is added to steps.
  config.optimizer.adamw.weight_decay = 1e-4
  # Orthogonal steps for matrices, AdamW for embeddings and vectors.
  config.optimizer.muon = ConfigDict()
  config.optimizer.muon.momentum = 0.95  # Decay of the mean gradient.
  config.optimizer.muon.nesterov = True  # Whether momentum is Nesterov's.
  config.optimizer.muon.iterations = 5  # Of Newton and Schulz.
  # Root mean square of a matrix's step at rate 1; AdamW's is about 0.2.
  config.optimizer.muon.rms = 0.2
  config.optimizer.muon.b1 = 0.9  # As adamw.b1, of embeddings and vectors.
  config.optimizer.muon.b2 = 0.999  # As adamw.b2, likewise.
  config.optimizer.muon.eps = 1e-8  # As adamw.eps; of norms of matrices, too.
  # Multiple of the parameters that is added to steps.
  config.optimizer.muon.weight_decay = 1e-4
  config.optimizer.lars = ConfigDict()
  config.optimizer.lars.momentum = 0.9  # Decay of the momentum.
  config.optimizer.lars.nesterov = False  # Whether momentum is Nesterov's.
  # Multiple of the parameters that is added to gradients.
  config.optimizer.lars.weight_decay = 1e-4
  # Norm of a layer's step over the norm of its parameters, at rate 1.
  config.optimizer.lars.trust_coefficient = 1e-3
  # Whether biases and scales are neither adapted nor decayed, as is usual for
  # large batches.
  config.optimizer.lars.skip_vectors = False

  # How are displacements applied, if there are several local steps?
  config.outer = ConfigDict()
  config.outer.name = 'sgd'  # Function of learning/outer.py.
  config.outer.learning_rate = 1.0
  config.outer.reduction = 'mean'  # As config.optimizer.reduction.
  config.outer.sgd = ConfigDict()
  config.outer.nesterov = ConfigDict()
  config.outer.nesterov.momentum = 0.9  # Decay of the momentum.
  config.outer.delayed_nesterov = ConfigDict()
  config.outer.delayed_nesterov.momentum = 0.9  # Decay of the momentum.
  # Updates between two that apply momentum, usually the number of workers.
  config.outer.delayed_nesterov.delay = 4

  # How much does a push count that versions were applied since its pull?
  config.staleness = ConfigDict()
  config.staleness.name = 'constant'  # Function of learning/staleness.py.
  config.staleness.constant = ConfigDict()  # As much as any.
  config.staleness.polynomial = ConfigDict()  # (1 + versions)^-exponent.
  config.staleness.polynomial.exponent = 0.5

  # How does the learning rate change, by examples of the whole cluster?
  config.schedule = ConfigDict()
  config.schedule.name = 'constant'  # Function of learning/schedule.py.
  config.schedule.warmup_epochs = 0.0  # Epochs of a linear warm-up.
  # Unit of progress: 'examples', or 'updates' as in many papers.
  config.schedule.counts = 'examples'
  config.schedule.constant = ConfigDict()
  config.schedule.step = ConfigDict()
  config.schedule.step.epochs = ()  # Epochs at which the rate drops.
  config.schedule.step.factor = 0.1  # Factor of each drop.
  config.schedule.cosine = ConfigDict()
  config.schedule.cosine.final = 0.0  # Final rate over the initial one.
  config.lock()
  for path in user_parts.SUPPLIED:
    section = config
    for part in path.split('.'):
      section = section[part]
    section.own.unlock()  # Its fields depend on the user's module.
  return config


def read_section(path: str) -> dict[str, Any]:
  """Returns the fields of a section with their defaults.

  They are the arguments of `make` of the section's module, for use without a
  run.

  Args:
    path: Path of the section, such as 'sync.ssp'.
  """
  section = get_config()
  for name in path.split('.'):
    section = section[name]
  fields: dict[str, Any] = section.to_dict()
  return fields


def _add_training(network: ConfigDict, *, steps: int, decay: float) -> None:
  """Adds the fields of predict/online.py, which trains a network."""
  # Weight of the newest speed in the average that the network corrects.
  network.smoothing = 0.3
  # Weight of the newest speed in a quicker average, for comparison.
  network.quick = 0.7
  # Weight of the newest squared error when predictions are weighed.
  network.discount = 0.03
  # Stored observations of a worker; at most 200,000 of all workers.
  network.kept = 2000
  # Observations of a worker before the network predicts it; not tuned.
  network.needed = 30
  network.steps = steps  # Steps of Adam per observation.
  network.minibatch = 64  # Samples of a step.
  network.learning_rate = 3e-3  # Learning rate of Adam.
  network.decay = decay  # Decoupled weight decay.
  # Weight of the newest parameters in the average that predicts.
  network.averaging = 1e-2
