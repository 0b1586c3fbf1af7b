"""Tests for cluster.network.messages: which messages are accepted."""

import msgspec
from absl.testing import absltest, parameterized

from cluster.network import messages

_WORKER = messages.WorkerHello(0, '09af' * 8, 'x')
_SERVER = messages.ServerHello(1, '09af' * 8, 'x')
_HEARTBEAT = messages.WorkerHeartbeat(0.5, ('compute', 3, 1))
_REPORT = messages.PushReport(
  iteration=0,
  pulled_at=0.0,
  computed_at=0.0,
  compute_s=0.0,
  factors=[1.0],
  loss=None,
  is_finite=True,
  computed=8,
  compilations=0,
  has_recalled=False,
)
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
    (messages.FROM_SERVER, messages.ServerFailed('x\n' * 2000)),
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
    *(
      ({'type': 'Activity', 'text': text},)
      for text in (1, 'x' * 10**4, 'a\nb', '\x1b[2J')
    ),
    *(
      ({'type': 'WorkerReady', 'devices': devices},)
      for devices in ('cpu', [[1]], ['cpu', 7], ['a' * 201], ['two\nlines'])
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
      for orders in ([], {'order': 0}, {'executed': -1}, {'order': 'a\n'})
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


if __name__ == '__main__':
  absltest.main()
