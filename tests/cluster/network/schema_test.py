"""Tests for cluster.network.messages: which messages are accepted."""

import random

import msgspec
from absl.testing import absltest, parameterized

from cluster.network import messages
from tests.support import drawn_messages, reports

_WORKER = messages.WorkerHello(0, '09af' * 8, 'x')
_SERVER = messages.ServerHello(1, '09af' * 8, 'x')
_HEARTBEAT = messages.WorkerHeartbeat(0.5, ('compute', 3, 1))
_REPORT = msgspec.structs.replace(reports.PUSH, factors=[1.0])
_HOST = messages.HostDescription('a', '10.0.0.1', '', 1)


def _plain(message, **fields):
  return msgspec.to_builtins(message) | fields


class SchemaTest(parameterized.TestCase):
  @parameterized.parameters(
    (messages.HELLO, _WORKER),
    (messages.HELLO, _SERVER),
    (messages.FROM_WORKER, _HEARTBEAT),
    (messages.FROM_WORKER, messages.Activity('connected to 1 of 2 servers')),
    (messages.FROM_WORKER, messages.WorkerReady(['cpu'], True)),
    (messages.FROM_WORKER, messages.Evaluated(1, {'accuracy': 0.5})),
    (messages.FROM_SERVER, messages.ServerHeartbeat(1.0)),
    (
      messages.FROM_SERVER,
      messages.ServerHeartbeat(
        1.0, messages.OrderProgress(3, 'Add', 0.1, None)
      ),
    ),
    (messages.FROM_SERVER, messages.ServerAddress('127.0.0.1:80')),
    (messages.FROM_SERVER, messages.ServerAddress('[::1]:80')),
    (messages.FROM_SERVER, messages.ServerAddress('[fe80::1%eth0]:80')),
    (messages.FROM_SERVER, messages.PushArrived(0, 2, _REPORT)),
    (messages.FROM_SERVER, messages.WorkerFailed(0, 2, 'Closed: x')),
    (messages.FROM_SERVER, messages.ServerFailed('x\n' * 2000)),  # Is cut.
    (messages.FROM_SERVER, messages.VersionPart(1, 8)),
    (messages.FROM_SERVER, messages.ShareSaved(1, 'OSError: full')),
    (messages.FROM_REPLICA, messages.TrafficReport([(3, 10, 0.5)])),
    (messages.FROM_REPLICA, messages.ProbeAnswer(1, _HOST, '')),
    (messages.FROM_REPLICA, messages.ProbeAnswer(1, [(0, 2.0)], '')),
    (messages.FROM_REPLICA, messages.ProbeAnswer(1, None, 'worker 1: gone')),
  )
  def test_messages_of_each_kind_are_accepted(self, schema, message):
    self.assertEqual(schema.decode(messages.encode(message)), message)
    header = messages.encode_header(message, 7)
    self.assertEqual(schema.decode_header(header), (message, 7))

  @parameterized.parameters(
    *((_plain(_WORKER, worker=w),) for w in (-1, 2**20, '0', None, True, 0.5)),
    *((_plain(_SERVER, server=s),) for s in (-1, 2**20, '1', None, True)),
    *(
      (_plain(_WORKER, process=process),)
      for process in (None, '', 'A' * 32, '0' * 31, '0' * 33, [], 1)
    ),
    (_plain(_WORKER, fingerprint=1),),
    (_plain(_WORKER, server=1),),
    ({'type': 'WorkerHello', 'worker': 0},),
    ({'worker': 0, 'process': '0' * 32, 'fingerprint': 'x'},),
    ('worker',),
    (None,),
  )
  def test_other_hellos_are_refused(self, hello):
    with self.assertRaises(ValueError):
      messages.HELLO.decode(messages.encode(hello))

  @parameterized.parameters(*_REPORT.__struct_fields__)
  def test_every_field_of_a_push_report_is_checked(self, name):
    bad = ['x', [None], {}, float('nan'), float('inf')]
    if name in ('iteration', 'computed', 'compilations', 'compute_s'):
      bad.append(-1)
    if name in ('pulled_at', 'computed_at', 'compute_s'):
      bad.append(2**40)
    plain = _plain(_REPORT)
    for value in bad:
      with self.assertRaisesRegex(ValueError, name):
        messages.PUSH.decode(messages.encode(plain | {name: value}))
    del plain[name]
    with self.assertRaisesRegex(ValueError, name):
      messages.PUSH.decode(messages.encode(plain))

  @parameterized.parameters(
    *((said,) for said in (None, [], {}, 'ready', {'type': 'x'}, {'type': []})),
    *((_plain(_HEARTBEAT, sent=x),) for x in ('x', float('inf'), 2.0**1000)),
    (_plain(_HEARTBEAT, other=1),),
    *(
      (_plain(_HEARTBEAT, progress=progress),)
      for progress in ([], 'abc', ['x', 0, 0], ['compute', 0.5, 0], ['compute'])
    ),
    *(({'type': 'Activity', 'text': text},) for text in (1, 'x' * 10**4)),
    *(
      ({'type': 'WorkerReady', 'devices': devices},)
      for devices in ('cpu', [[1]], ['cpu', 7], ['a' * 201])
    ),
    ({'type': 'WorkerReady', 'devices': ['x'] * 1025},),
    ({'type': 'Evaluated', 'number': 1, 'figures': {'accuracy': 'high'}},),
  )
  def test_other_messages_of_workers_are_refused(self, said):
    with self.assertRaises(ValueError):
      messages.FROM_WORKER.decode(messages.encode(said))

  @parameterized.parameters(
    *(
      ({'type': 'ServerAddress', 'address': address},)
      for address in (
        *(1, 'x', '0.0.0.0:1', '1.2.3.4:', '1.2.3.4:65536'),
        *('[::]:1', '::1:1', '[::1]', '[::1]:0', '[::g]:1', '[a.b]:1'),
      )
    ),
    *(
      ({'type': 'ServerHeartbeat', 'sent': 0.0, 'orders': orders},)
      for orders in ([], {'order': 0}, {'executed': -1})
    ),
    (_plain(messages.PushArrived(0, 2, _REPORT), worker=-1),),
  )
  def test_other_messages_of_servers_are_refused(self, said):
    with self.assertRaises(ValueError):
      messages.FROM_SERVER.decode(messages.encode(said))

  @parameterized.parameters(
    {'answer': 'text'},
    {'answer': [[0]]},
    {'answer': [[-1, 2.0]]},
    {'answer': [[0, 'fast']]},
    {'answer': {'type': 'HostDescription', 'hostname': 'a', 'address': 'b'}},
    {'answer': _plain(_HOST, hostname=1)},
    {'number': -1},
    {'problem': None},
  )
  def test_other_answers_to_probes_are_refused(self, **wrong):
    said = _plain(messages.ProbeAnswer(1, [(0, 1.0)], ''))
    messages.FROM_REPLICA.decode(messages.encode(said))
    with self.assertRaises(ValueError):
      messages.FROM_REPLICA.decode(messages.encode(said | wrong))

  @parameterized.parameters(
    None, [[[1, 2]]], [[[1, -2, 0.0]]], [[['a', 1, 0.0]]]
  )
  def test_other_traffic_is_refused(self, sent):
    said = {'type': 'TrafficReport', 'sent': sent}
    with self.assertRaises(ValueError):
      messages.FROM_REPLICA.decode(messages.encode(said))

  def test_an_address_is_named_by_its_form(self):
    address = messages.encode(messages.ServerAddress('here'))
    with self.assertRaisesRegex(ValueError, r'Expected `str` IPv4:PORT'):
      messages.FROM_SERVER.decode(address)

  def test_whole_numbers_are_accepted_for_numbers(self):
    said = _plain(_HEARTBEAT, sent=1)
    self.assertEqual(messages.FROM_WORKER.decode(messages.encode(said)).sent, 1)

  def test_no_text_of_any_message_can_forge_a_line_of_the_log(self):
    rng = random.Random(0)
    kinds = drawn_messages.kinds()
    self.assertGreater(len(kinds), 60)
    for kind in kinds:
      for _ in range(20):
        plain = drawn_messages.draw(rng, kind, text=_hostile)
        message = msgspec.msgpack.decode(messages.encode(plain), type=kind)
        for text in _texts(msgspec.msgpack.decode(messages.encode(message))):
          self.assertTrue(text.isprintable(), f'{kind.__name__}: {text!r}')
          self.assertLessEqual(len(text), messages.MOST_CHARACTERS)

  @parameterized.parameters(
    ('plain: ü', 'plain: ü'),
    ('a\nINFO forged \x1b[2J\x07', 'a\\nINFO forged \\x1b[2J\\x07'),
    ('\u202eright to left', '\\u202eright to left'),
    ('x' * 1001, 'x' * 997 + '...'),
    ('\n' * 700, '\\n' * 498 + '\\...'),
  )
  def test_a_reason_is_escaped_and_cut(self, reason, expected):
    made = messages.ServerFailed(reason)
    self.assertEqual(made.reason, expected)
    self.assertEqual(messages.ServerFailed(made.reason), made)

  def test_a_longer_text_than_any_that_is_made_is_refused(self):
    said = {'type': 'ServerFailed', 'reason': 'x' * 1001}
    with self.assertRaisesRegex(ValueError, 'reason'):
      messages.FROM_SERVER.decode(messages.encode(said))

  def test_the_text_of_an_error_is_printable(self):
    said = {'type': 'no\nmessage', 'no\x1bfield': 'x'}
    for schema in (messages.FROM_SERVER, messages.FROM_WORKER):
      with self.assertRaises(ValueError) as refused:
        schema.decode(messages.encode(said))
      self.assertTrue(str(refused.exception).isprintable())


def _hostile(rng, most):
  """Returns a text with characters that are not printable."""
  words = ('a', 'ü', '\n', '\r', '\x1b[2J', '\0', '\u202e', '\u2028', '\x85')
  text = ''.join(rng.choices(words, k=rng.choice((1, 5, 400))))
  return text[:most]


def _texts(value):
  """Yields all texts in plain data."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict):
    for pair in value.items():
      yield from _texts(pair)
  elif isinstance(value, list | tuple):
    for each in value:
      yield from _texts(each)


if __name__ == '__main__':
  absltest.main()
