"""Every field of a run, at its default: VGG16 at 1/8 width on digits, with BSP.

Each section with a `name` chooses one of its sub-sections; only that one is
used, and a field that is changed in another one is an error.
"""

import math

import ml_collections
from ml_collections import ConfigDict, FieldReference


def get_config() -> ml_collections.ConfigDict:
  """Returns the defaults, locked: a misspelt field is an error."""
  config = ConfigDict()
  config.seed = 0  # Of parameters, data order, dropout and jitter.
  # GPU kernels that repeat bit for bit; CPUs repeat anyway.
  config.deterministic = True
  config.epochs = 40.0  # Length of the run, fractions allowed.
  config.eval_every = 1.0  # Epochs between evaluations on the test split.
  config.log_every = 100  # Iterations between log rows.
  # Beside accuracy: whether a class is among so many that are likeliest; or 0.
  config.eval_top = 0
  config.time_to = (0.9, 0.95)  # Accuracies whose first time is reported.
  config.time_to_loss = ()  # Losses; of ten iterations in a row below them.

  # What is written beside rows of metrics and a summary.
  config.outputs = ConfigDict()
  config.outputs.timeline = True  # trace.json: what every worker did when.
  config.outputs.events = True  # events.jsonl: for replays, and of batches.
  config.outputs.board = True  # What TensorBoard shows.

  # When may a worker go on?
  config.sync = ConfigDict()
  config.sync.name = 'bsp'  # Module of sync/.
  config.sync.bsp = ConfigDict()
  config.sync.asp = ConfigDict()
  config.sync.ssp = ConfigDict()
  config.sync.ssp.bound = 3  # Largest lead, iterations.
  config.sync.dssp = ConfigDict()
  config.sync.dssp.low = 3  # Lead up to which every worker goes on.
  config.sync.dssp.high = 15  # Largest lead, iterations.
  config.sync.elastic = ConfigDict()
  config.sync.elastic.lookahead = 15  # Predicted pushes per worker (R).
  config.sync.elastic.monitor_pushes = 2  # Per worker, before a search.
  config.sync.elastic.bound = math.inf  # Largest lead since a barrier.
  config.sync.r2sp = ConfigDict()
  config.sync.r2sp.relaxation = 0.8  # Gap as a share of T / N (r).
  config.sync.r2sp.smoothing = 0.1  # Weight of the newest time in T.

  # How much does each worker compute?
  config.batching = ConfigDict()
  config.batching.name = 'fixed'  # The same number of examples, always.
  config.batching.worker_batch = 16  # Examples of an iteration (X0).
  config.batching.micro_batch = 128  # Largest compiled shape, power of two.
  config.batching.fixed = ConfigDict()
  config.batching.lb_bsp = ConfigDict()  # By predicted speeds.
  config.batching.lb_bsp.threshold = 0.02  # Share of time a change must save.
  config.batching.lb_bsp.least = 1  # Fewest examples of a worker.
  config.batching.lb_bsp.most = ()  # One, or one each; (): no bound.
  # How fast will each worker be?  Chosen by the least error on
  # bench/recorded.csv from 40 % to 70 % of each worker's values, unless said
  # otherwise.  Around these values the networks' errors are flat.
  config.batching.lb_bsp.predictor = ConfigDict()
  predictor = config.batching.lb_bsp.predictor
  predictor.name = 'narx'  # Module of predict/.
  predictor.last = ConfigDict()
  predictor.ema = ConfigDict()
  predictor.ema.smoothing = 0.7  # Weight of the newest speed.
  predictor.arima = ConfigDict()
  predictor.arima.p = 0  # Past values.
  predictor.arima.d = 1  # 1: of differences of speeds.
  predictor.arima.q = 1  # Past errors.
  predictor.arima.kept = 300  # Speeds that are fitted; for the cost.
  predictor.arima.needed = 50  # Observations before the first fit; a guess.
  predictor.arima.refit = 100  # Observations between fits; for the cost.
  predictor.arima.smoothing = 0.7  # Of the average before the first fit.
  predictor.narx = ConfigDict()
  predictor.narx.lags = 3  # Past speeds and factors that it sees (d).
  predictor.narx.hidden = 16  # Width of the tanh layer.
  _add_training(predictor.narx, steps=8, decay=0.03)
  predictor.rnn = ConfigDict()
  predictor.rnn.window = 4  # Observations that it reads.
  predictor.rnn.hidden = 8  # Width of its state.
  _add_training(predictor.rnn, steps=4, decay=0.1)
  predictor.lstm = ConfigDict()
  predictor.lstm.window = 5  # Observations that it reads.
  predictor.lstm.hidden = 8  # Width of its state.
  _add_training(predictor.lstm, steps=4, decay=0.1)
  config.batching.lb_bsp_gpu = ConfigDict()  # By curves, or by trying.
  # Files of tools.profile_batches, one or one each, with commas; '' for none.
  config.batching.lb_bsp_gpu.curves = ''
  config.batching.lb_bsp_gpu.smoothing = 0.2  # Weight of the newest time.
  # Without curves, at first: between two steps, and of a step.
  config.batching.lb_bsp_gpu.window = 5  # Supersteps.
  config.batching.lb_bsp_gpu.step = 4  # Examples.
  config.batching.lb_bsp_gpu.threshold = 0.05  # As above.
  config.batching.lb_bsp_gpu.least = 1  # Fewest examples of a worker.
  config.batching.lb_bsp_gpu.most = ()  # One, or one each; (): no bound.
  config.batching.r2sp = ConfigDict()  # Who waits computes more instead.
  config.batching.r2sp.window = 10  # Iterations from one tuning to the next.
  config.batching.r2sp.history = 10  # Windows that are averaged, the last ones.
  config.batching.r2sp.most = ()  # One, or one each; (): no bound.
  config.batching.r2sp_released = ConfigDict()  # As published code: diverges.
  # Iterations of a worker from one tuning to the next.
  config.batching.r2sp_released.window = 10
  # Waits that are averaged, the last ones.
  config.batching.r2sp_released.recent = 5
  # Share of time that waits must pass.
  config.batching.r2sp_released.threshold = 0.1
  config.batching.r2sp_released.most = ()  # One, or one each; (): no bound.

  # What travels?
  config.wire = ConfigDict()
  config.wire.name = 'dense'  # Module of wire/: all parameters.
  config.wire.dense = ConfigDict()
  # Or 'bfloat16', 'float16': rounded on the way, to be summed in float32.
  config.wire.dense.dtype = 'float32'
  config.wire.sparse = ConfigDict()  # Chunks of gradients; others wait.
  config.wire.sparse.dtype = 'float32'  # Or 'bfloat16', 'float16'.
  config.wire.sparse.sparsity = 0.9  # Share of the chunks that waits.
  config.wire.sparse.chunk = 32768  # Numbers of a chunk.
  # Momentum of what has not arrived: 'none': treated as zeros; 'masked': left
  # as it is; 'local': workers have it instead of the optimiser.
  config.wire.sparse.correction = 'masked'
  config.wire.sparse.momentum = 0.0  # Of 'local'.
  config.wire.sparse.select_lag = 0  # 1: chosen by what was left the last time.
  config.wire.sparse.warmup = ()  # Sparsities before, rising.
  config.wire.sparse.warmup_epochs = 1.0  # Of each of them.
  config.wire.topk = ConfigDict()  # The largest numbers; others wait.
  config.wire.topk.sparsity = 0.99  # Share of the numbers that waits.
  config.wire.quantised = ConfigDict()  # 8-bit integers, rounded at random.
  config.wire.quantised.chunk = 2048  # Numbers that share a scale.
  config.wire.quantised.seed = 0  # Of the rounding.
  config.wire.lowrank = ConfigDict()  # Matrices as products of thin ones.
  config.wire.lowrank.rank = 4  # Columns of a factor.

  # Where does it travel?
  config.route = ConfigDict()
  config.route.name = 'server'  # Module of route/: to servers and back.
  config.route.server = ConfigDict()
  # The parameters are split over them; 0: one in each worker of real hosts, or
  # one where updates cannot be divided; one under the virtual clock.
  config.route.server.servers = 0
  # Processes of their own, or threads of the first workers' ones.
  config.route.server.dedicated = False
  # Parts are summed and served one by one: pulls overlap pushes.  For bsp.
  config.route.server.pipelined = False
  # For all others, which sum among the workers; for bsp.  A part of the
  # gradients travels once it has so many bytes; 0: tensor by tensor, inf: all
  # in one; 'auto': what is predicted to be the fastest.
  config.route.bucket_bytes = FieldReference(2.0**20, field_type=object)
  config.route.overlap = True  # While the others are still computed.
  config.route.native = ConfigDict()  # XLA's psum: gloo, or NCCL.
  # Where processes of jax.distributed meet; 0: the one after the lead's.
  config.route.native.port = 0
  # Between accelerators, ranges are summed together until they have so many
  # bytes; 0: each by itself, as between CPUs.
  config.route.native.combine_bytes = 2.0**25
  config.route.ring = ConfigDict()
  # Of this and those below.  The links: a file of them, a builder such as
  # 'star([1, 2])', 'probe': measured at the start, or in the last 24 hours
  # (under the virtual clock what they are), or '': all equal, through one
  # switch.
  config.route.ring.cluster = ''
  config.route.hierarchical = ConfigDict()  # Rings in groups, and between.
  config.route.hierarchical.cluster = 'probe'  # Of two groups at least.
  config.route.double_tree = ConfigDict()  # Two binary trees.
  config.route.double_tree.cluster = ''  # As of ring.
  config.route.forest = ConfigDict()  # Trees packed for the links.
  config.route.forest.cluster = 'probe'  # As of ring.
  # Real links are followed, and another forest takes over if it is worth it.
  config.route.forest.adapt = False
  config.route.auto = ConfigDict()  # The fastest of them, by prediction.
  config.route.auto.cluster = 'probe'  # As of ring.

  config.cluster = ConfigDict()
  # 'virtual': simulated time, one process; 'distributed': real hosts.
  config.cluster.runtime = 'virtual'
  config.cluster.workers = 4  # Data-parallel replicas (n).
  config.cluster.devices_per_worker = 1  # Of its host; they split batches.
  config.cluster.workers_per_gpu = 1  # Of its host; they share its memory.
  # Deaths and returns: ((seconds, 'leave' or 'join', worker), ...).
  config.cluster.script = ()
  # Of real hosts only: silence after which a process counts as lost, seconds.
  config.cluster.timeout_s = 10.0
  config.cluster.start_s = 300.0  # Until all have to be there, seconds.
  # To listen on: a network interface, or a network such as '10.0.0.0/8'.
  config.cluster.interface = 'lo'
  # Of a secret that all processes share; '': 'token' in the run's folder.
  config.cluster.token_file = ''
  config.cluster.certificate_file = ''  # PEM, of all servers; '': plain text.
  config.cluster.key_file = ''  # PEM, of the certificate.
  # What the certificate names; '': the address that is connected to.
  config.cluster.tls_name = ''
  # Failures on purpose: ((worker, iteration, kind), ...), or with a phase as
  # a fourth, by cluster/process/faults.py.
  config.cluster.faults = ()
  # An iteration takes (fixed + per_example * batch) * slowdown * factor.
  config.cluster.speed = ConfigDict()
  config.cluster.speed.injected = False  # Real workers wait until it is over.
  config.cluster.speed.name = 'lognormal'  # Where the factor comes from.
  config.cluster.speed.fixed_s = 0.02  # Seconds, whatever the batch.
  config.cluster.speed.per_example_s = 0.0025  # Seconds that each adds.
  config.cluster.speed.least_s = 0.0  # Of fixed and per_example together.
  config.cluster.speed.slowdown = (1.0, 1.5, 2.0, 3.0)  # One, or one each.
  # When gradients appear: a file of tools.profile_layers; or, from shapes, of
  # 'alexnet' or 'resnet50' and a batch, such as 'roofline(alexnet, 128)'; '':
  # in proportion to their bytes, over the last two thirds of the time.
  config.cluster.speed.layers = ''
  config.cluster.speed.constant = ConfigDict()  # Always 1.
  config.cluster.speed.lognormal = ConfigDict()  # Independent, of mean 1.
  config.cluster.speed.lognormal.sigma = 0.1  # Of the factor's logarithm.
  config.cluster.speed.regime = ConfigDict()  # A Markov chain per worker.
  config.cluster.speed.regime.factors = (1.0, 3.0)  # Its states.
  config.cluster.speed.regime.stay = 0.98  # Probability per iteration.
  config.cluster.speed.regime.sigma = 0.0  # As of lognormal, beside it.
  config.cluster.speed.regime.noise = 0.0  # Of the driving factor read.
  config.cluster.speed.trace = ConfigDict()  # Recorded iteration times.
  config.cluster.speed.trace.path = ''  # A CSV file with a header.
  config.cluster.speed.trace.worker_column = 'worker'  # Whose row it is.
  config.cluster.speed.trace.order_column = 'time'  # Orders its rows.
  config.cluster.speed.trace.value_column = 'batch_time_norm'  # The times.
  config.cluster.speed.trace.driving_columns = ''  # With commas between them.
  # One value for all hosts, or one each.
  config.cluster.network = ConfigDict()
  config.cluster.network.worker_up_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.worker_down_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.worker_latency_s = (1e-4,)  # Seconds, one way.
  # Where workers sum: for so long a range holds links up before its bytes go.
  config.cluster.network.range_s = 0.0
  config.cluster.network.server_up_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.server_down_Bps = (125e6,)  # Bytes per second.
  config.cluster.network.server_latency_s = (1e-4,)  # Seconds, one way.
  # Server k has no links of its own: it uses those of worker k's host.
  config.cluster.network.servers_in_workers = False
  # Among workers, instead of their up and down links around one switch: a file
  # of nodes and links, or a builder.  Latencies stay.
  config.cluster.links = ''

  # In what do layers compute?  Parameters, sums, norms and losses are float32.
  config.precision = ConfigDict()
  config.precision.dtype = 'float32'  # Or 'bfloat16', 'float16'.
  # Of products and convolutions of float32 on accelerators, forward and
  # backward: 'float32', or 'tensorfloat32', 'bfloat16' to round what they
  # multiply.  CPUs multiply in float32 anyway.
  config.precision.matmul = 'float32'
  # With float16 one has to say 'dynamic', or 'none' to go without.
  config.precision.loss_scaling = ''
  # Gradients in turn without overflow after which a dynamic scale doubles.
  config.precision.grow_after = 2000

  config.model = ConfigDict()
  config.model.name = 'vgg'  # Module of models/, or 'none'.
  # No model: time alone is simulated, for as many workers as one likes.
  config.model.none = ConfigDict()
  config.model.none.size_bytes = 100_000_000  # Of parameters, in float32.
  config.model.none.num_train = 50_000  # Examples of an epoch.
  config.model.vgg = ConfigDict()
  config.model.vgg.depth = 16  # 11, 16 or 19.
  config.model.vgg.width = 0.125  # Multiplier of all widths.
  config.model.vgg.dropout = 0.0  # Of the hidden dense layers.
  config.model.alexnet = ConfigDict()
  config.model.alexnet.width = 1.0  # Multiplier of all widths.
  config.model.alexnet.norm = 'none'  # Or 'group', 'batch'.
  config.model.alexnet.dropout = 0.5  # Of the hidden dense layers.
  config.model.resnet = ConfigDict()
  config.model.resnet.depth = 20  # 20, 32, 110 (CIFAR), or 50 (bottleneck).
  config.model.resnet.width = 1.0  # Multiplier of all widths.
  config.model.resnet.norm = 'group'  # Or 'batch', 'none'.
  config.model.inception_v3 = ConfigDict()
  config.model.inception_v3.width = 1.0  # Multiplier of all widths.
  config.model.inception_v3.norm = 'group'  # Or 'batch', 'none'.
  config.model.inception_v3.dropout = 0.2  # Before the last layer.
  config.model.transformer = ConfigDict()
  config.model.transformer.layers = 2  # Blocks of attention and dense layers.
  config.model.transformer.width = 128  # Numbers that stand for a token.
  config.model.transformer.heads = 4  # Of attention; they split the width.
  config.model.transformer.dropout = 0.1  # Of embeddings and layers.
  config.model.mlp = ConfigDict()
  config.model.mlp.hidden = (128,)  # Widths of the hidden layers.

  config.data = ConfigDict()
  config.data.name = 'digits'  # Module of data/.
  config.data.dir = ''  # Of data files; '' takes $SYNCOPATE_DATA.
  config.data.ahead = 2  # Iterations that a worker holds examples ahead.
  # Random changes of training images; digits must not be mirrored.
  config.data.crop_padding = 0  # Largest shift, pixels.
  # Smallest share of an image that crops of random size show; 0.08 is usual.
  config.data.crop_area = 1.0
  config.data.flip = False  # Left and right, half of the images.
  config.data.digits = ConfigDict()
  config.data.digits.fold = 0  # Which fifth is for testing, 0 to 4.
  config.data.cifar10 = ConfigDict()
  # The official archive, or an .npz of encoded images.
  config.data.cifar10.file = 'cifar-10-python.tar.gz'
  config.data.cifar100 = ConfigDict()
  config.data.cifar100.file = 'cifar-100-python.tar.gz'  # The official one.
  config.data.fashion_mnist = ConfigDict()
  config.data.fashion_mnist.folder = 'fashion-mnist'  # Of its IDX files.
  config.data.imagenet = ConfigDict()
  config.data.imagenet.folder = 'imagenet'  # Of train/CLASS and val/CLASS.
  config.data.imagenet.pixels = 224  # Height and width to cut images to.
  config.data.text = ConfigDict()
  # UTF-8; its characters are the vocabulary.  '' takes Python's own manual.
  config.data.text.file = ''
  config.data.text.length = 128  # Characters of an example.
  config.data.text.test_share = 0.1  # The end of the file.
  config.data.synthetic = ConfigDict()
  config.data.synthetic.num_train = 1024  # Examples.
  config.data.synthetic.num_test = 256  # Examples.
  config.data.synthetic.pixels = 32  # Height and width.
  config.data.synthetic.channels = 3  # Of each pixel.
  config.data.synthetic.num_classes = 10  # Equally many of each.

  config.checkpoint = ConfigDict()
  config.checkpoint.every_s = 60.0  # Wall time between; inf for none.
  config.checkpoint.every_examples = 0  # Examples between; 0 for none.
  config.checkpoint.keep = 2  # Of the newest.

  config.optimizer = ConfigDict()
  config.optimizer.name = 'sgd'  # Function of learning/optimizer.py.
  config.optimizer.learning_rate = 0.015  # Before schedule and reduction.
  config.optimizer.clip_norm = math.inf  # Of an update's mean gradient.
  # Or 'mean': over n workers; or 'barrier_mean': over the pushes of an update.
  config.optimizer.reduction = 'sum'
  config.optimizer.sgd = ConfigDict()
  config.optimizer.sgd.momentum = 0.0  # Kept of the last step.
  config.optimizer.sgd.nesterov = False  # Momentum looks ahead.
  config.optimizer.sgd.weight_decay = 0.0  # Times parameters, to gradients.
  config.optimizer.adamw = ConfigDict()
  config.optimizer.adamw.b1 = 0.9  # Kept of the mean gradient.
  config.optimizer.adamw.b2 = 0.999  # Kept of the mean squared gradient.
  config.optimizer.adamw.eps = 1e-8  # Added to its root.
  config.optimizer.adamw.weight_decay = 1e-4  # Times parameters, to steps.
  config.optimizer.lars = ConfigDict()
  config.optimizer.lars.momentum = 0.9  # Kept of the last step.
  config.optimizer.lars.nesterov = False  # Momentum looks ahead.
  config.optimizer.lars.weight_decay = 1e-4  # Times parameters, to gradients.
  config.optimizer.lars.trust_coefficient = 1e-3  # Step over parameter norm.
  # Biases and scales are neither adapted nor decayed, as for large batches.
  config.optimizer.lars.skip_vectors = False

  # The learning rate over the run, by examples of the whole cluster.
  config.schedule = ConfigDict()
  config.schedule.name = 'constant'  # Function of learning/schedule.py.
  config.schedule.warmup_epochs = 0.0  # Linear, before the shape.
  config.schedule.counts = 'examples'  # Or 'updates', as often published.
  config.schedule.constant = ConfigDict()
  config.schedule.step = ConfigDict()
  config.schedule.step.epochs = ()  # At which the rate drops.
  config.schedule.step.factor = 0.1  # Of the rate, at each.
  config.schedule.cosine = ConfigDict()
  config.schedule.cosine.final = 0.0  # Share of the rate at the end.
  return config.lock()


def _add_training(network: ConfigDict, *, steps: int, decay: float) -> None:
  """Adds how predict/online.py trains a network."""
  network.smoothing = 0.3  # Of the average that it corrects.
  network.quick = 0.7  # The same of one that it is weighed against.
  network.discount = 0.03  # Weight of the newest squared error, for that.
  network.kept = 2000  # Observations of each; of all at most 200,000.
  network.needed = 30  # Of a worker, before it predicts; a guess.
  network.steps = steps  # Of Adam, per observation.
  network.minibatch = 64  # Examples of a step.
  network.learning_rate = 3e-3  # Of Adam.
  network.decay = decay  # Weight decay, decoupled.
  network.averaging = 1e-2  # Weight of the newest parameters in the mean.
