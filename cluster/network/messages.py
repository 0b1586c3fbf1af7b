"""The schema of the messages between the processes of a run.

Every message is one of the classes here, encoded as MessagePack by msgspec.  A
`Schema` names the classes that a process accepts at one point of a stream, and
decodes them.  A process that knows the token may still run another version or
be faulty, so all constraints are checked when a message is decoded: a message
that violates one is never seen by the code that acts on messages, and ends the
stream of its sender.

Numbers are finite, counts are not negative.  Texts are bounded and printable,
since they are logged: `printable` escapes all other characters of every text of
a message that is made or decoded.  What only the receiver knows, such as the
number of workers, is checked there: see `InvalidMessage`.  Arrays are not part
of messages: they travel as the body of a message (`streams`).
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, inspect

from configs.fields.route import MOST_LANES

T_co = TypeVar('T_co', covariant=True)

_NUMBER = 2.0**1000  # Exclusive bound of numbers.
_SECONDS = 2.0**40  # Exclusive bound of times: their products are finite.
_COUNT = 2**53  # Exclusive bound of counts, which floats then hold exactly.
_WORKERS = 2**16  # Exclusive bound of ranks.
_DEVICES = 1024  # Of one process.
_FIELDS = 2**12  # Of a config.
_REASON = 300  # Characters of a reason for which a message is refused.
MAX_SOURCES = 4  # Of a state that a process fetches.
MOST_CHARACTERS, LINE = 1000, 200  # Of a text, and of a line.
_OCTET = '(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
_PORT = (
  '(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}'
  '|[1-9][0-9]{0,3})'
)
_ADDRESS = (
  rf'\A(?:(?!0\.0\.0\.0:){_OCTET}(?:\.{_OCTET}){{3}}'
  rf'|\[(?!::\])[0-9a-f:]{{2,39}}(?:%[0-9a-zA-Z_.-]{{1,15}})?\]):{_PORT}\Z'
)

Number = Annotated[float, Meta(gt=-_NUMBER, lt=_NUMBER)]
Factor = Annotated[float, Meta(gt=-_SECONDS, lt=_SECONDS)]
Moment = Annotated[float, Meta(gt=-_SECONDS, lt=_SECONDS)]  # Of a clock.
Seconds = Annotated[float, Meta(ge=0, lt=_SECONDS)]
Weight = Annotated[float, Meta(ge=0, lt=_COUNT)]  # In examples.
Count = Annotated[int, Meta(ge=0, lt=_COUNT)]
Rank = Annotated[int, Meta(ge=0, lt=_WORKERS)]
Text = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
Line = Annotated[str, Meta(max_length=LINE)]  # Shown in logs again and again.
Address = Annotated[str, Meta(pattern=_ADDRESS)]  # Of IPv4 or '[IPv6]:port'.
Process = Annotated[str, Meta(pattern=r'\A[0-9a-f]{32}\Z')]

# First and last example, exclusive, of each range.
Ranges = tuple[tuple[Count, Count], ...]
# Phase, iteration (-1 before the first) and number of its chunks so far.
Progress = tuple[
  Literal['transfer', 'compute'],
  Annotated[int, Meta(ge=-1, lt=_COUNT)],
  Count,
]
# Rank and address of a process that gives its state to others.
Source = tuple[Rank, Address]
# See `cluster.membership.worker_states.ResidualId`.
ResidualSource = tuple[Count | None, Count | None, Sequence[Rank]]
# Receiver, bytes sent to it, and seconds for which some were on their way.
Traffic = Annotated[
  Sequence[tuple[Rank, Count, Seconds]], Meta(max_length=_WORKERS)
]
# Values of a config as texts, by field.
Fields = Annotated[dict[Line, Line], Meta(max_length=_FIELDS)]
Devices = Annotated[Sequence[Line], Meta(max_length=_DEVICES)]


def printable(value: Any, most: int = MOST_CHARACTERS) -> Any:
  """Returns a text of a peer as it may be logged.

  Args:
    value: A text, or plain data with texts.
    most: Most characters of each text; more are cut off.

  Returns:
    The same value if all its texts are printable and short; otherwise one with
    characters escaped as in Python's literals, so that no text can begin a new
    line or control a terminal.
  """
  if isinstance(value, str):
    if len(value) <= most and value.isprintable():
      return value
    text = ''.join(
      c if c.isprintable() else c.encode('unicode_escape').decode()
      for c in value[: most + 1]
    )
    return text if len(text) <= most else text[: most - 3] + '...'
  if isinstance(value, list | tuple):
    return type(value)(printable(each, most) for each in value)
  if isinstance(value, dict):
    return {
      printable(key, most): printable(each, most) for key, each in value.items()
    }
  return value


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """Base of all structs, whose texts are `printable`."""

  def __post_init__(self) -> None:
    """Escapes texts; called when a struct is made and when it is decoded."""
    for name, most in _find_texts(type(self)):
      value = getattr(self, name)
      if (shown := printable(value, most)) != value:
        msgspec.structs.force_setattr(self, name, shown)


class Message(_Base, frozen=True, forbid_unknown_fields=True, tag=True):
  """Base of all messages; a field 'type' holds the name of the class."""


class Untagged(_Base, frozen=True, forbid_unknown_fields=True):
  """Base of structs whose place in a stream or message determines the class."""


@functools.cache
def _find_texts(kind: type[msgspec.Struct]) -> tuple[tuple[str, int], ...]:
  """Returns the fields of a struct that have texts, with their lengths.

  Texts of which a pattern admits printable characters only are left out.
  """
  described = inspect.type_info(kind)
  if not isinstance(described, inspect.StructType):
    raise TypeError(f'Expected a struct, got {kind!r}.')
  lengths = {each.name: _length(each.type) for each in described.fields}
  return tuple((name, most) for name, most in lengths.items() if most)


def _length(described: inspect.Type) -> int:
  """Returns the most characters of texts of a type; 0 for a type without."""
  match described:
    case inspect.StrType(pattern=None):
      return described.max_length or MOST_CHARACTERS
    case inspect.UnionType():
      parts = described.types
    case inspect.ListType() | inspect.VarTupleType():
      parts = (described.item_type,)
    case inspect.TupleType():
      parts = described.item_types
    case inspect.DictType():
      parts = described.key_type, described.value_type
    case _:
      return 0
  return max(map(_length, parts))


class Versions(Untagged, frozen=True):
  """Versions of a process, which all processes of a run must share.

  Attributes:
    sources: Digest of the source files.
    revision: Commit of Git or version of the package, for messages alone.
    jax: Version of JAX.
    jaxlib: Version of jaxlib.
    data: Digest of the data set; '' without one.
  """

  sources: Line = ''
  revision: Line = ''
  jax: Line = ''
  jaxlib: Line = ''
  data: Line = ''


class WorkerHello(Message, frozen=True):
  """Request of a worker for admission by the coordinator.

  Attributes:
    worker: Rank of the worker.
    process: Random identity of its process.
    fingerprint: Hash of its config.
    versions: Versions of its process.
    fields: Its config by field, for messages.
  """

  worker: Rank
  process: Process
  fingerprint: Text
  versions: Versions = Versions()
  fields: Fields = {}


class ServerHello(Message, frozen=True):
  """Request of a parameter server for admission by the coordinator.

  Attributes:
    server: Rank of the server.
    process: Random identity of its process.
    fingerprint: Hash of its config.
    versions: Versions of its process.
    fields: Its config by field, for messages.
  """

  server: Rank
  process: Process
  fingerprint: Text
  versions: Versions = Versions()
  fields: Fields = {}


class WorkerAdmitted(Message, frozen=True):
  """Admission of a worker.

  Attributes:
    incarnation: Number of admissions to the rank before.
    succeeds: Of a coordinator that was elected and has not begun an epoch: the
      term that it succeeds, whose members have the states of the run.
  """

  incarnation: Count
  succeeds: Count | None = None


class MirrorSource(Untagged, frozen=True):
  """A part of a mirror, and the processes that have it.

  Attributes:
    number: Number of the mirror.
    addresses: Addresses of the processes.
  """

  number: Count
  addresses: Annotated[Sequence[Address], Meta(max_length=MAX_SOURCES)]


class ServerAdmitted(Message, frozen=True):
  """Answer of the coordinator: the parameter server takes part in the run.

  Attributes:
    coordinator: Random identity of the coordinator's process.
    restore: Number of a checkpoint to resume from, and of the servers in it;
      None to start from scratch.
    mirror: The server's share in a mirror, to resume from instead; None for
      none.
  """

  coordinator: Text
  restore: tuple[Count, Count] | None = None
  mirror: MirrorSource | None = None


class RankTaken(Message, frozen=True):
  """Refusal for now: another process holds the rank.

  Attributes:
    reason: Text for logs.
  """

  reason: Text


class Rejected(Message, frozen=True):
  """Permanent refusal.

  Attributes:
    reason: Text for logs.
  """

  reason: Text


class WorkerHeartbeat(Message, frozen=True):
  """Sign of life of a worker.

  Attributes:
    sent: Time of the worker's clock, seconds.
    progress: Progress of its iteration.
    is_draining: Whether it wants to leave the run after its iteration.
  """

  sent: Number
  progress: Progress
  is_draining: bool = False


class OrderProgress(Untagged, frozen=True):
  """Progress of a parameter server's orders.

  Attributes:
    executed: Number of `Orders` that have been executed whole.
    order: Name of the order that is being executed; '' for none.
    since_s: Seconds since the start of that order.
    usual_s: Seconds of the longest earlier order of that name; None for none.
  """

  executed: Count = 0
  order: Line = ''
  since_s: Number = 0.0
  usual_s: Number | None = None


class ServerHeartbeat(Message, frozen=True):
  """Sign of life of a parameter server.

  Attributes:
    sent: Time of the server's clock, seconds.
    orders: Progress of its orders; None before it can execute any.
  """

  sent: Number
  orders: OrderProgress | None = None


class HeartbeatReply(Message, frozen=True):
  """Answer of the coordinator to a heartbeat.

  Attributes:
    sent: Time in the heartbeat.
    clock: Time of the coordinator's clock, seconds.
  """

  sent: Number
  clock: Number


class SessionEnd(Message, frozen=True):
  """End of the session of a process.

  Attributes:
    kind: 'left' if the process was evicted, and may rejoin; 'drained' if it has
      left as it wanted to; 'over' if the run has ended; 'lost' if the
      coordinator is lost, which the process itself concludes.
    reason: Text for logs.
    is_finished: Whether the run is complete.
  """

  kind: Literal['left', 'drained', 'over', 'lost']
  reason: Text
  is_finished: bool = False

  def describe(self) -> str:
    """Returns the end as a clause for logs, whose subject is the process."""
    if self.kind == 'over':
      return 'ends, as the run has ' + (
        'finished' if self.is_finished else f'ended ({self.reason})'
      )
    if self.kind == 'drained':
      return 'has left the run as it wanted to'
    if self.kind == 'left':
      return f'was evicted: {self.reason}'
    return f'has lost the coordinator: {self.reason}'


class Activity(Message, frozen=True):
  """Present activity of a process that starts, for logs.

  Attributes:
    text: One printable line.
  """

  text: Line


class WorkerReady(Message, frozen=True):
  """Report of a worker that it has connected to all parameter servers.

  Attributes:
    devices: Kinds of its devices.
    has_accelerator: Whether it can evaluate on an accelerator.
    address: Address of its process, if that can hold parts of mirrors.
  """

  devices: Devices = ()
  has_accelerator: bool = False
  address: Address | None = None


class ReplicaReady(Message, frozen=True):
  """Report of a replica that other replicas can connect to it.

  Attributes:
    address: Address at which it sums, and gives its state to others.
    devices: Kinds of its devices.
    cores: Cores that its process may use.
  """

  address: Address
  devices: Devices = ()
  cores: Annotated[int, Meta(ge=1, lt=_COUNT)] = 1


# Orders to parameter servers.


class Pull(Untagged, frozen=True):
  """A worker's next iteration, sent with the parameters.

  Attributes:
    iteration: Number of the iteration, of this worker.
    ranges: Its examples.
    examples: Number of its examples.
    scale: Factor of the loss.
    upcoming: Examples of the iteration after it, as far as they are known.
    stage: Index of the codec of gradients.
    residual: Source of the state that the worker continues with.
    rate: Learning rate of local steps; None without a model.
  """

  iteration: Count
  ranges: Ranges
  examples: Count
  scale: Number
  upcoming: Ranges
  stage: Count
  residual: ResidualSource
  rate: Number | None = None


class Add(Message, frozen=True):
  """Order to sum a push, which has arrived whole, into an update.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
    update: Number of the update.
    examples: Number of its examples; 0 to discard it.
    weight: Weight of these examples, in examples.
    scale: Number by which the push is divided: its loss scale over the weight
      of its staleness.
  """

  worker: Rank
  incarnation: Count
  update: Count
  examples: Count
  weight: Weight
  scale: Number


class Commit(Message, frozen=True):
  """Order to apply an update.

  Attributes:
    update: Number of the update.
  """

  update: Count


class Release(Message, frozen=True):
  """Order to send the present version to a worker.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
    pull: What the worker receives with the version.
  """

  worker: Rank
  incarnation: Count
  pull: Pull


class EndWorker(Message, frozen=True):
  """Order to end the stream of a worker's incarnation.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
  """

  worker: Rank
  incarnation: Count


class Hold(Message, frozen=True):
  """Order to keep the present version under a number.

  Attributes:
    version: The number.
  """

  version: Count


class Drop(Message, frozen=True):
  """Order to discard a version that is held.

  Attributes:
    version: Its number.
  """

  version: Count


class SendVersion(Message, frozen=True):
  """Order to send a version that is held to the coordinator.

  Attributes:
    question: Number of the answer.
    version: Number of the version.
  """

  question: Count
  version: Count


class SaveShare(Message, frozen=True):
  """Order to write a server's part of a checkpoint.

  Attributes:
    question: Number of the answer.
    step: Number of the checkpoint.
  """

  question: Count
  step: Count


class MirrorShare(Message, frozen=True):
  """Order to retain a server's state as its part of a mirror.

  Attributes:
    number: Number of the mirror.
  """

  number: Count


class DropMirrors(Message, frozen=True):
  """Order to drop the parts of old mirrors.

  Attributes:
    before: Number of the oldest mirror that is retained.
  """

  before: Count


Order = (
  Add
  | Commit
  | Release
  | EndWorker
  | Hold
  | Drop
  | SendVersion
  | SaveShare
  | MirrorShare
  | DropMirrors
)


class Orders(Message, frozen=True):
  """Orders to a parameter server, which executes them in sequence.

  Attributes:
    sequence: Number of these orders, higher by one than that of the last.
    orders: The orders.
  """

  sequence: Count
  orders: Sequence[Order]


# Messages of parameter servers to the coordinator.


class ServerWork(Untagged, frozen=True):
  """Work of a parameter server, measured before its run.

  Attributes:
    share_bytes: Bytes of its parameters and running statistics.
    slot_bytes: Bytes of the optimizer's slots.
    sum_s: Seconds in which it decodes a push and adds it.
    update_s: Seconds in which it applies an update.
  """

  share_bytes: Count
  slot_bytes: Count
  sum_s: Seconds
  update_s: Seconds


class ServerAddress(Message, frozen=True):
  """Report of a parameter server: the address that workers connect to.

  Attributes:
    address: Its address.
    left: Updates and examples that it had applied before it returned to a
      mirror; None if it has not.
    work: Its work; None if it was not measured.
  """

  address: Address
  left: tuple[Count, Count] | None = None
  work: ServerWork | None = None


class PushReport(Untagged, frozen=True):
  """A worker's report on an iteration, sent with the gradient.

  Attributes:
    iteration: Number of the iteration, of this worker.
    pulled_at: Time at which it had all parameters, by the coordinator's clock.
    computed_at: Time at which it had computed, by the coordinator's clock.
    compute_s: Seconds of computing.
    factors: Driving factors of its next iteration.
    loss: Weighted sum of the examples' losses; None for none or a non-finite
      one.
    weight: Weight of the push, in examples.
    is_finite: Whether loss and gradient are finite.
    computed: Number of examples that were computed, with padding.
    compilations: Number of XLA compilations since the first pull.
    has_recalled: Whether this incarnation continues with an earlier state.
  """

  iteration: Count
  pulled_at: Moment
  computed_at: Moment
  compute_s: Seconds
  factors: Sequence[Factor]
  loss: Number | None
  weight: Weight
  is_finite: bool
  computed: Count
  compilations: Count
  has_recalled: bool


class PushArrived(Message, frozen=True):
  """Report that a server has received a whole push.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
    report: The worker's report.
  """

  worker: Rank
  incarnation: Count
  report: PushReport


class WorkerFailed(Message, frozen=True):
  """Report that the stream of a worker to a server has failed.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
    reason: Text for logs.
  """

  worker: Rank
  incarnation: Count
  reason: Text


class AcceptWorker(Message, frozen=True):
  """Order to a parameter server to accept the stream of a worker.

  Not one of `Orders`: workers connect before the run begins.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation, which ends those before.
    process: Random identity of its process.
  """

  worker: Rank
  incarnation: Count
  process: Process


class WorkerAccepted(Message, frozen=True):
  """Answer to `AcceptWorker`.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
  """

  worker: Rank
  incarnation: Count


class ServerFailed(Message, frozen=True):
  """Report of a server that it cannot continue.

  Attributes:
    reason: Text for logs.
  """

  reason: Text


class VersionPart(Message, frozen=True):
  """Part of a requested version; the bytes are the body.

  Attributes:
    question: Number in the order.
    size_bytes: Size of the whole version.
  """

  question: Count
  size_bytes: Count


class ShareSaved(Message, frozen=True):
  """Answer to `SaveShare`.

  Attributes:
    question: Number in the order.
    error: Reason for which it could not be written; None for none.
  """

  question: Count
  error: Text | None = None


class ShareMirrored(Message, frozen=True):
  """Report that a server has retained its part of a mirror.

  Attributes:
    number: Number of the mirror.
    address: Address of the process that has the part.
    size_bytes: Bytes of its arrays.
  """

  number: Count
  address: Address
  size_bytes: Count


# Between workers and parameter servers.


class WorkerConnection(Message, frozen=True):
  """First message of a worker to a parameter server.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
    process: Random identity of its process.
  """

  worker: Rank
  incarnation: Count
  process: Process


class PieceSizes(Message, frozen=True):
  """Answer of a parameter server to a worker that has connected.

  Attributes:
    sizes: Bytes of the pieces in which pushes travel; empty if they travel
      whole.
  """

  sizes: Sequence[Count]


class PulledPieces(Message, frozen=True):
  """Parameters in pieces, sent before the worker is released."""


class Released(Message, frozen=True):
  """Release of a worker, with the parameters unless it has all pieces.

  Attributes:
    pull: The next iteration.
  """

  pull: Pull


# Messages of the coordinator to workers of parameter servers, and answers.


class ServerAddresses(Message, frozen=True):
  """Addresses of all parameter servers, in the order of their shares.

  Attributes:
    addresses: The addresses.
  """

  addresses: Sequence[Address]


class SaveResidual(Message, frozen=True):
  """Request to write a worker's part of a checkpoint.

  Attributes:
    step: Number of the checkpoint.
    residual: Source of the worker's state to write.
  """

  step: Count
  residual: ResidualSource


class ResidualSaved(Message, frozen=True):
  """Answer to `SaveResidual`.

  Attributes:
    step: Number of the checkpoint.
    is_known: Whether the worker has that state.
    error: Reason for which it could not be written; None for none.
  """

  step: Count
  is_known: bool
  error: Text | None = None


class RetainResidual(Message, frozen=True):
  """Request to retain a worker's codec state for as long as a mirror.

  Attributes:
    mirror: Number of the mirror.
    residual: Source of the codec state.
  """

  mirror: Count
  residual: ResidualSource


class FetchMirror(Message, frozen=True):
  """Request to fetch a part of a mirror, and to hold it.

  Attributes:
    number: Number of the mirror.
    part: Name of the part.
    address: Address of the process that has it.
  """

  number: Count
  part: Line
  address: Address


class MirrorFetched(Message, frozen=True):
  """Answer to `FetchMirror`.

  Attributes:
    number: Number of the mirror.
    part: Name of the part.
    error: Reason for which the process does not hold it; None if it does.
  """

  number: Count
  part: Line
  error: Text | None = None


class MirrorCompleted(Message, frozen=True):
  """Note that a mirror is complete, and older ones are needed no longer.

  Attributes:
    term: Term of the coordinator.
    number: Number of the mirror.
    members: Addresses of the workers' processes, by rank.
  """

  term: Count
  number: Count
  members: dict[Rank, Address]


class HostServer(Message, frozen=True):
  """Request to host a server whose process is lost.

  Attributes:
    server: Rank of the server.
  """

  server: Rank


class Evaluate(Message, frozen=True):
  """Request for an evaluation.

  Attributes:
    number: Number of the evaluation.
    address: Address of the handover of the version to evaluate.
  """

  number: Count
  address: Address


class Evaluated(Message, frozen=True):
  """Answer to `Evaluate`.

  Attributes:
    number: Number of the evaluation.
    figures: Results by name; None for none.
    error: Reason for which there are none; None for none.
  """

  number: Count
  figures: dict[Text, Number] | None
  error: Text | None = None


# Messages of the coordinator to replicas, and answers.


class MemberForest(Untagged, frozen=True):
  """Members of an epoch, and the forest over which they sum.

  Attributes:
    addresses: Address of each member's executor, by rank.
    names: Rank of each member, by its name in the forest.
    forest: Forest and links as `topology.forests.compact` writes them, encoded
      once for all members: see `FOREST`.
    lanes: Number of lanes that divide the chunks.
  """

  addresses: dict[Rank, Address]
  names: dict[Text, Rank]
  forest: msgspec.Raw
  lanes: Annotated[int, Meta(ge=1, le=MOST_LANES)] = 1


class ConnectMembers(Message, frozen=True):
  """Order to connect to the other members of a new epoch.

  Attributes:
    membership_epoch: Number of the membership epoch.
    version: Version that all members must have.
    sources: Members from which to fetch the state of that version; empty if
      this one has it.
    members: The members and their forest; None where XLA sums.
    drops_residual: Whether the member's residual of that version does not
      count: the coordinator's worker has those of all, from a checkpoint.
  """

  membership_epoch: Count
  version: Count
  sources: Annotated[Sequence[Source], Meta(max_length=MAX_SOURCES)] = ()
  members: MemberForest | None = None
  drops_residual: bool = False


class Connected(Message, frozen=True):
  """Report of a replica that it is connected to the members of an epoch.

  Attributes:
    membership_epoch: Number of the membership epoch.
    version: Version of its state.
    digest: Digest of its state.
    sent: Its traffic since it started.
  """

  membership_epoch: Count
  version: Count
  digest: Text
  sent: Traffic


class ConnectionLost(Message, frozen=True):
  """Report of a replica that it has lost another one.

  Attributes:
    membership_epoch: Number of the membership epoch.
    peer: Rank of the lost replica; its own if its executor has failed; None if
      it is unknown.
    reason: Text for logs.
  """

  membership_epoch: Count
  peer: Rank | None
  reason: Text


class Assignment(Message, frozen=True):
  """Examples of one iteration of a replica.

  Attributes:
    membership_epoch: Number of the membership epoch.
    version: Version to which the gradient is applied.
    iteration: Number of the iteration, of this replica.
    ranges: Its examples.
    examples: Number of its examples.
    total: Number of examples of all members.
    members: Ranks of the members, ascending.
    stage: Index of the codec of gradients.
    assigned_at: Time of the assignment, seconds of the coordinator's clock.
    term: Term of the coordinator.
    state: Source of the state that the replica's local steps continue with.
  """

  membership_epoch: Count
  version: Count
  iteration: Count
  ranges: Ranges
  examples: Count
  total: Count
  members: Sequence[Rank]
  stage: Count
  assigned_at: Number
  term: Count = 0
  state: ResidualSource = (None, None, ())


class CoordinatorState(Message, frozen=True):
  """State of the coordinator, for a member that may succeed it.

  Attributes:
    term: Term of the coordinator.
    membership_epoch: Number of the membership epoch.
    version: Number of recorded updates.
    has_measures: Whether the distributions of the run are part of it; if not,
      those of an earlier state count.
    arrays: Name, NumPy dtype, shape and bytes of each array of the state.
  """

  term: Count
  membership_epoch: Count
  version: Count
  has_measures: bool
  arrays: Sequence[tuple[Text, Line, Sequence[Count], bytes]]


class StopEpoch(Message, frozen=True):
  """Order to end a membership epoch.

  Attributes:
    membership_epoch: Number of the next membership epoch.
    completes: Whether members complete the present iteration first.
  """

  membership_epoch: Count
  completes: bool


class EpochStopped(Message, frozen=True):
  """Answer to `StopEpoch`.

  Attributes:
    membership_epoch: Number of the next membership epoch.
    version: Version of the replica's state.
    statistics: Step statistics of the last iteration that it has applied.
  """

  membership_epoch: Count
  version: Count
  statistics: Sequence[Number]


class CheckState(Message, frozen=True):
  """Request for a digest of a replica's state.

  Attributes:
    membership_epoch: Number of the membership epoch.
  """

  membership_epoch: Count


class StateDigest(Message, frozen=True):
  """Answer to `CheckState`.

  Attributes:
    membership_epoch: Number of the membership epoch.
    version: Version of the state.
    digest: Digest of the state.
    sent: The replica's traffic since it started.
  """

  membership_epoch: Count
  version: Count
  digest: Text
  sent: Traffic


class CompareState(Message, frozen=True):
  """Order to compare a replica's state with the reference, and to adopt it.

  Attributes:
    membership_epoch: Number of the membership epoch.
    version: Version of the states.
    sources: Members that have the reference state.
    replaces: Whether the reference is adopted whatever the difference.
  """

  membership_epoch: Count
  version: Count
  sources: Annotated[
    Sequence[Source], Meta(min_length=1, max_length=MAX_SOURCES)
  ]
  replaces: bool


class StateCompared(Message, frozen=True):
  """Answer to `CompareState`.

  Attributes:
    membership_epoch: Number of the membership epoch.
    version: Version of the states.
    digest: Digest of the replica's state afterwards.
    difference: Relative difference; None if it is not finite.
  """

  membership_epoch: Count
  version: Count
  digest: Text
  difference: Number | None


class CollectResiduals(Message, frozen=True):
  """Order to sum the residuals of all replicas, for a checkpoint.

  Attributes:
    membership_epoch: Number of the membership epoch.
  """

  membership_epoch: Count


class RetainState(Message, frozen=True):
  """Order to retain a state, and the sums of all updates from it on.

  Workers that catch up fetch them: see `cluster.allreduce.retention`.

  Attributes:
    version: Version of the state: the one that the replica has, or a later one.
  """

  version: Count


class ReleaseState(Message, frozen=True):
  """Order to drop retained states and sums that are no longer needed.

  Attributes:
    before: First version that is still needed; None for none.
  """

  before: Count | None


class CatchUp(Message, frozen=True):
  """Order to a worker that is no member to come closer to the members' state.

  Attributes:
    version: Version to reach.
    since: Version of the worker's state, to which it applies the sums of later
      updates; None to fetch the whole state.
    sources: Members that have retained these.
  """

  version: Count
  since: Count | None
  sources: Annotated[
    Sequence[Source], Meta(min_length=1, max_length=MAX_SOURCES)
  ]


class CaughtUp(Message, frozen=True):
  """Answer to `CatchUp`.

  Attributes:
    version: Version in the order.
    problem: Reason for which it was not reached; '' if it was.
  """

  version: Count
  problem: Text = ''


class TrafficReport(Message, frozen=True):
  """A worker's traffic.

  Attributes:
    sent: Traffic since its session began, by worker; of a run with servers, by
      server.
  """

  sent: Traffic


# Election of a coordinator.


class MemberStanding(Message, frozen=True):
  """Standing of a member in an election: see `cluster.membership.election`.

  Attributes:
    worker: Rank of the member.
    position: Relation to the coordinators of the run.
    term: Last term that it knows to have begun.
    membership_epoch: Last membership epoch that it knows to have begun.
    version: Version of its learner.
    has_state: Whether it has a copy of the coordinator's state.
    address: Address of the coordinator that it leads or follows; None for none.
  """

  worker: Rank
  position: Literal['follows', 'lost', 'gathers', 'leads']
  term: Count
  membership_epoch: Count
  version: Count
  has_state: bool
  address: Address | None = None


class StandingRequest(Message, frozen=True):
  """Request for the standing of a member.

  Attributes:
    run: Random identity of the run whose member is asked.
  """

  run: Text


# Probing of links.


class OpenEndpoint(Message, frozen=True):
  """Order to listen for transfers."""


class CloseEndpoint(Message, frozen=True):
  """Order to end all transfers."""


class MeetPeers(Message, frozen=True):
  """Addresses of all processes that take part in transfers.

  Attributes:
    peers: Name, address and port of each.
    own: Index of the receiver of this message.
    key: Secret of the connections, in hex.
  """

  peers: Annotated[
    Sequence[tuple[Text, Text, Annotated[int, Meta(ge=1, lt=2**16)]]],
    Meta(max_length=_WORKERS),
  ]
  own: Rank
  key: Process


class OpenTransfers(Message, frozen=True):
  """Order to open the connections of a test.

  Attributes:
    number: Number of the test.
    receivers: Indices of the processes to send to.
    senders: Indices of the processes to receive from.
    streams: Connections for each of them.
    pings: Whether to measure round trips.
  """

  number: Count
  receivers: Sequence[Rank]
  senders: Sequence[Rank]
  streams: Annotated[int, Meta(ge=1, lt=2**16)]
  pings: bool


class TransferFor(Message, frozen=True):
  """Order to send and receive over the connections of a test.

  Attributes:
    seconds: Seconds for which arriving bytes are counted.
  """

  seconds: Seconds


Probe = OpenEndpoint | CloseEndpoint | MeetPeers | OpenTransfers | TransferFor


class HostDescription(Message, frozen=True):
  """Answer to `OpenEndpoint`.

  Attributes:
    hostname: Name of the host.
    address: Address that the process listens on.
    card: Hardware address of the network card, in hex; '' if it is unknown.
    port: Port that the process listens on.
  """

  hostname: Line
  address: Line
  card: Line
  port: Annotated[int, Meta(ge=0, lt=2**16)]


# Index of another process, and seconds of a round trip or bytes per second.
Rates = Annotated[Sequence[tuple[Rank, Number]], Meta(max_length=_WORKERS)]


class ProbeOrder(Message, frozen=True):
  """Order to a replica to take part in a measurement of links.

  Attributes:
    number: Number of the answer.
    probe: The order.
  """

  number: Count
  probe: Probe


class ProbeAnswer(Message, frozen=True):
  """Answer to `ProbeOrder`.

  Attributes:
    number: Number in the order.
    answer: Host, or rates by process; None if the order has failed.
    problem: Reason for which it has failed; '' for none.
  """

  number: Count
  answer: HostDescription | Rates | None
  problem: Text


class ProbeMember(Message, frozen=True):
  """First message of a process of tools.probe to its leader.

  Attributes:
    rank: Rank of the process.
    name: Name for logs.
    host: Its host.
  """

  rank: Rank
  name: Line
  host: HostDescription


class ProbeStep(Message, frozen=True):
  """Order of the leader of tools.probe.

  Attributes:
    probe: The order.
    limit_s: Seconds that it takes at most.
  """

  probe: Probe
  limit_s: Seconds


class ProbeResult(Message, frozen=True):
  """Answer to `ProbeStep`.

  Attributes:
    rates: Rates by process; None if the order has failed.
    problem: Reason for which it has failed; '' for none.
  """

  rates: Rates | None
  problem: Text = ''


class ProbeEnd(Message, frozen=True):
  """End of the measurement of tools.probe.

  Attributes:
    reason: Reason for which it ends too early; '' for none.
  """

  reason: Text


# Handover of states between processes.


class StateRequest(Message, frozen=True):
  """First message of a process that fetches the state of another.

  Attributes:
    version: Version of the state.
    digest: Digest of the state that it has; '' for none.
    is_retained: Whether it fetches a state that was retained, or updates, while
      the source continues: see `RetainState`.
    since: Version from which updates lead to `version`, to fetch these; None
      for the state.
  """

  version: Annotated[int, Meta(gt=-_COUNT, lt=_COUNT)]
  digest: Text = ''
  is_retained: bool = False
  since: Count | None = None


class SameState(Message, frozen=True):
  """Answer to `StateRequest`: the requesting process has the same state.

  Attributes:
    digest: Digest of the state.
  """

  digest: Text


class StateArrays(Message, frozen=True):
  """Answer to `StateRequest`; the state's plain data is the body.

  Attributes:
    arrays: Path in the state, dtype and shape of each.
    digest: Digest of the state.
  """

  arrays: Sequence[tuple[Text, Line, Sequence[Count]]]
  digest: Text


class RangeRequest(Message, frozen=True):
  """Request for some bytes of the arrays, counted through all of them.

  Attributes:
    start: First byte.
    stop: Byte after the last.
  """

  start: Count
  stop: Count


class StateRange(Message, frozen=True):
  """Answer to `RangeRequest`; the bytes are the body.

  Attributes:
    start: First byte.
  """

  start: Count


# Islands: see `cluster.islands`.


class IslandHello(Message, frozen=True):
  """Request of a follower to join its island.

  Attributes:
    worker: Rank of the island.
    member: Rank of the process in it; the leader is 0.
  """

  worker: Rank
  member: Annotated[int, Meta(ge=1, lt=_WORKERS)]


class JoinIsland(Message, frozen=True):
  """Answer to `IslandHello`, once all followers are there.

  Attributes:
    address: Address of the coordination service of jax.distributed.
  """

  address: Address


class FollowerReady(Message, frozen=True):
  """Report of a follower that it has the model and the data.

  Attributes:
    fingerprint: Hash of its config.
    versions: Versions of its process.
    devices: Number of devices of each process of the island.
    fields: Its config by field, for messages.
  """

  fingerprint: Text
  versions: Versions
  devices: Count
  fields: Fields = {}


class PrepareExamples(Message, frozen=True):
  """Order to gather the examples of a later push.

  Attributes:
    ranges: Positions of the examples.
  """

  ranges: Ranges


class WarmUpIsland(Message, frozen=True):
  """Order to compile all programs, with the leader.

  Attributes:
    examples: Examples of a batch; None if there is no bound.
    changing: Whether later batches may be smaller.
  """

  examples: Count | None
  changing: bool


class ComputePush(Message, frozen=True):
  """Order to compute a push, with the leader.

  Attributes:
    ranges: Positions of its examples.
    iteration: Number of the iteration.
    scale: Factor of the gradient.
    rate: Learning rate of local steps; None without a model.
    has_state: Whether the leader sends the state of the inner optimizer.
  """

  ranges: Ranges
  iteration: Count
  scale: Number
  rate: Number | None
  has_state: bool


class LeaderEnded(Message, frozen=True):
  """Note that the leader's process ends.

  Attributes:
    code: Its exit code.
    reason: Text for logs.
    at_once: Whether it does not leave jax.distributed, for which all processes
      of the island would wait.
  """

  code: Annotated[int, Meta(ge=0, lt=256)]
  reason: Text
  at_once: bool


class Done(Message, frozen=True):
  """Note that no more of a state is needed."""


class Schema(Generic[T_co]):
  """The messages that a process accepts at one point of a stream."""

  def __init__(self, kind: Any):
    """Creates the decoder.

    Args:
      kind: A message class, a union of some, or another type of msgspec.
    """
    self._message = msgspec.msgpack.Decoder(kind)
    self._header = msgspec.msgpack.Decoder(tuple[kind, Count])

  def decode(self, data: Any) -> T_co:
    """Returns the message that some bytes encode.

    Raises:
      ValueError: If they encode none of these messages; says why.
    """
    message: T_co = _decoded(self._message, data)
    return message

  def decode_header(self, data: Any) -> tuple[T_co, int]:
    """Returns a message and the size of its body, bytes.

    Raises:
      ValueError: If the bytes encode none of these messages; says why.
    """
    header: tuple[T_co, int] = _decoded(self._header, data)
    return header


def encode_header(message: Any, size_bytes: int) -> bytes:
  """Returns a message and the size of its body, encoded as MessagePack."""
  return _ENCODER.encode((message, size_bytes))


def encode(message: Any) -> bytes:
  """Returns the bytes of a message without a body, for `Schema.decode`.

  A handshake carries its hello in this form.  `Stream.send` encodes messages
  with the size of their body: see `encode_header`.

  Args:
    message: Struct of this module, or plain data.
  """
  return _ENCODER.encode(message)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], data: Any) -> Any:
  try:
    return decoder.decode(data)
  except (ValueError, RecursionError) as error:
    form = 'IPv4:PORT or [IPv6]:PORT'
    shown = str(error).replace(f'matching regex {_ADDRESS!r}', form)
    raise ValueError(printable(shown, _REASON)) from error


_ENCODER = msgspec.msgpack.Encoder()

FromWorker = (
  WorkerHeartbeat
  | Activity
  | WorkerReady
  | ResidualSaved
  | Evaluated
  | MirrorFetched
  | TrafficReport
)
FromReplica = (
  WorkerHeartbeat
  | Activity
  | ReplicaReady
  | Connected
  | ConnectionLost
  | EpochStopped
  | StateDigest
  | StateCompared
  | CaughtUp
  | ProbeAnswer
  | TrafficReport
  | ResidualSaved
)
ServerReport = (
  PushArrived
  | WorkerFailed
  | ServerFailed
  | VersionPart
  | ShareSaved
  | ShareMirrored
)
FromServer = (
  ServerHeartbeat | Activity | ServerAddress | WorkerAccepted | ServerReport
)
ToServer = Orders | AcceptWorker
ToWorker = (
  ServerAddresses
  | SaveResidual
  | Evaluate
  | RetainResidual
  | FetchMirror
  | MirrorCompleted
  | HostServer
)
ToReplica = (
  ConnectMembers
  | Assignment
  | StopEpoch
  | CheckState
  | CompareState
  | CollectResiduals
  | SaveResidual
  | CoordinatorState
  | RetainState
  | ReleaseState
  | CatchUp
  | ProbeOrder
)

ToFollower = PrepareExamples | WarmUpIsland | ComputePush | LeaderEnded

NOTHING: Schema[None] = Schema(None)
ISLAND_HELLO: Schema[IslandHello] = Schema(IslandHello)
JOIN_ISLAND: Schema[JoinIsland | LeaderEnded] = Schema(JoinIsland | LeaderEnded)
FOLLOWER_READY: Schema[FollowerReady] = Schema(FollowerReady)
TO_FOLLOWER: Schema[ToFollower] = Schema(ToFollower)
HELLO: Schema[WorkerHello | ServerHello] = Schema(WorkerHello | ServerHello)
WORKER_ADMISSION: Schema[WorkerAdmitted | RankTaken | Rejected] = Schema(
  WorkerAdmitted | RankTaken | Rejected
)
SERVER_ADMISSION: Schema[ServerAdmitted | RankTaken | Rejected] = Schema(
  ServerAdmitted | RankTaken | Rejected
)
FROM_WORKER: Schema[FromWorker] = Schema(FromWorker)
FROM_REPLICA: Schema[FromReplica] = Schema(FromReplica)
FROM_SERVER: Schema[FromServer] = Schema(FromServer)
TO_WORKER: Schema[HeartbeatReply | SessionEnd | ToWorker] = Schema(
  HeartbeatReply | SessionEnd | ToWorker
)
TO_REPLICA: Schema[HeartbeatReply | SessionEnd | ToReplica] = Schema(
  HeartbeatReply | SessionEnd | ToReplica
)
TO_SERVER: Schema[HeartbeatReply | SessionEnd | ToServer] = Schema(
  HeartbeatReply | SessionEnd | ToServer
)
WORKER_CONNECTION: Schema[WorkerConnection] = Schema(WorkerConnection)
PIECE_SIZES: Schema[PieceSizes] = Schema(PieceSizes)
PULL: Schema[PulledPieces | Released] = Schema(PulledPieces | Released)
PUSH: Schema[PushReport] = Schema(PushReport)
FOREST: Schema[dict[str, Any]] = Schema(dict[str, Any])
STATE_REQUEST: Schema[StateRequest] = Schema(StateRequest)
STATE: Schema[SameState | StateArrays] = Schema(SameState | StateArrays)
RANGE_REQUEST: Schema[RangeRequest | Done] = Schema(RangeRequest | Done)
STATE_RANGE: Schema[StateRange] = Schema(StateRange)
STANDING_REQUEST: Schema[StandingRequest] = Schema(StandingRequest)
STANDING: Schema[MemberStanding] = Schema(MemberStanding)
PROBE_MEMBER: Schema[ProbeMember] = Schema(ProbeMember)
PROBE_STEP: Schema[ProbeStep | ProbeEnd] = Schema(ProbeStep | ProbeEnd)
PROBE_RESULT: Schema[ProbeResult] = Schema(ProbeResult)
