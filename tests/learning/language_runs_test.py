"""Runs of language models, from files of tokens to figures and pictures."""

import contextlib
import io
import math
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized
from tensorboardX.proto import event_pb2

import analysis
import train
from analysis import report
from configs import default
from data import tokens
from models import transformer
from tests.support import processes, replays, small
from tests.support.recomputing import recompute

_VOCABULARY, _LENGTH, _BYTES = 24, 8, 3.5
_MODEL = {'layers': 1, 'width': 8, 'heads': 2}
_LOCAL = {
  'batching__local_steps': 2,
  'outer__name': 'nesterov',
  'data__ahead': 1,
  'epochs': 12.0,
}


# Defaults of fields that `small.config` changes and that no run here has.
_UNUSED = {'model__mlp__hidden': default.get_config().model.mlp.hidden}
_UNUSED |= {
  f'data__synthetic__{name}': value
  for name, value in default.get_config().data.synthetic.items()
  if name in ('num_train', 'num_test', 'pixels', 'channels')
}


def _folder(count=1200) -> str:
  """Returns a folder with a file of documents in which tokens count up."""
  rng = np.random.default_rng(0)
  steps = rng.integers(1, 3, count).cumsum() % (_VOCABULARY - 1)
  steps[::17] = _VOCABULARY - 1  # Separators.
  directory = pathlib.Path(tempfile.mkdtemp())
  steps.astype('<u2').tofile(directory / 'corpus.bin')
  return str(directory)


def _config(directory, **changed):
  return small.config(**_fields(directory, **changed))


def _fields(directory, **changed):
  return {
    'epochs': 4.0,
    'model__name': 'transformer',
    **{f'model__transformer__{k}': v for k, v in _MODEL.items()},
    'data__name': 'tokens',
    'data__dir': directory,
    'data__tokens__file': 'corpus.bin',
    'data__tokens__test_tokens': 101,  # The last row is padded.
    'data__tokens__vocabulary': _VOCABULARY,
    'data__tokens__separator': _VOCABULARY - 1,
    'data__tokens__length': _LENGTH,
    'data__tokens__bytes_per_token': _BYTES,
    'optimizer__name': 'adamw',
    'optimizer__learning_rate': 0.01,
    'time_to': (),
    **_UNUSED,
    **changed,
  }


def _masked(**changed):
  """Returns fields of runs on rows of which most have few targets, or none."""
  directory, rng = tempfile.mkdtemp(), np.random.default_rng(0)
  arrays = {}
  for split, count in (('train', 192), ('test', 32)):
    shape = count, _LENGTH
    targets = rng.integers(0, _VOCABULARY, shape)
    share = rng.choice([0.0, 0.2, 1.0], (count, 1))
    arrays[f'{split}_inputs'] = rng.integers(0, _VOCABULARY, shape)
    arrays[f'{split}_targets'] = np.where(
      rng.random(shape) < share, targets, -1
    )
  np.savez(pathlib.Path(directory, 'masked.npz'), **arrays)
  fields = {
    name: value
    for name, value in _fields(directory).items()
    if not name.startswith('data__tokens')
  }
  own = {'data__name': 'arrays', 'data__arrays__file': 'masked.npz'}
  # Batches of two rows: some updates have no target at all.
  own |= {'batching__worker_batch': 2, 'epochs': 1.0}
  return {**fields, **own, **changed}


def _test_loss(params, directory) -> float:
  """Returns the loss of all test tokens, document by document, in float64."""
  corpus = np.fromfile(pathlib.Path(directory, 'corpus.bin'), '<u2')
  test = corpus[-102:].astype(np.int32)
  model = transformer.make(
    input_shape=(_LENGTH,),
    num_classes=_VOCABULARY,
    seed=0,
    size='tiny',
    dropout=0.0,
    **_MODEL,
  )
  graph, _ = transformer.nnx.split(model)
  model = transformer.nnx.merge(graph, params)
  documents, wanted = [], []
  for start in range(0, 101, _LENGTH):
    row = test[start : start + _LENGTH + 1]
    cuts = np.flatnonzero(row[:-1] == _VOCABULARY - 1)
    documents += np.split(row[:-1], cuts)
    wanted += np.split(row[1:], cuts)
  # What follows a document changes none of its logits.
  alone = np.zeros((len(documents), _LENGTH), np.int32)
  for row, document in zip(alone, documents, strict=True):
    row[: len(document)] = document
  logits = np.asarray(jax.jit(model)(alone), np.float64)
  likelihood = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  losses = [
    -math.log(each[place, target])
    for each, targets in zip(likelihood, wanted, strict=True)
    for place, target in enumerate(targets)
  ]
  if len(losses) != 101:
    raise ValueError(f'Expected 101 targets, got {len(losses)}.')
  return math.fsum(losses) / 101


def _board(folder) -> set[str]:
  """Returns the names of the curves in TensorBoard's file."""
  (path,) = pathlib.Path(folder).glob('events.out.tfevents.*')
  content, names, place = path.read_bytes(), set(), 0
  while place < len(content):
    size = int.from_bytes(content[place : place + 8], 'little')
    event = event_pb2.Event.FromString(content[place + 12 : place + 12 + size])
    names |= {value.tag for value in event.summary.value}
    place += size + 16
  return names


class LanguageRunTest(parameterized.TestCase):
  @parameterized.parameters(
    {}, _LOCAL, {'batching__name': 'lb_bsp'}, {'precision__dtype': 'bfloat16'}
  )
  def test_figures_are_those_of_all_test_tokens_document_by_document(
    self, **changed
  ):
    directory = _folder()
    run = small.build(_config(directory, **changed))
    summary = run()
    self.assertEqual(summary['compilations'], 0)
    learner = run.runtime.coordinator.store.learner
    loss = _test_loss(learner.params, directory)
    places = 2 if changed.get('precision__dtype') else 5
    self.assertAlmostEqual(summary['final_test_loss'], loss, places=places)
    self.assertAlmostEqual(
      summary['final_perplexity'], math.exp(summary['final_test_loss'])
    )
    self.assertAlmostEqual(
      summary['final_bits_per_byte'],
      summary['final_test_loss'] / math.log(2) / _BYTES,
    )
    # Two steps are equally likely, and documents end every 17 tokens.
    self.assertLess(loss, 0.9 * math.log(_VOCABULARY))

  def test_results_are_shown_in_all_places(self):
    directory = _folder()
    config = _config(directory, time_to_loss=(2.9,), log_every=1)
    config.time_to_measure.perplexity = (20.0, 1.0)
    config.time_to_measure.bits_per_byte = (1.25,)
    run = small.build(config)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), self.assertLogs() as logs:
      run.console._console.file = printed
      summary = run()
    rows = small.rows(run, 'metrics.jsonl')
    rows = [row for row in rows if row['kind'] == 'evaluation']
    for field, limit in (('perplexity', 20.0), ('bits_per_byte', 1.25)):
      first = next(row for row in rows if row[field] <= limit)
      reached = summary[f'to_{field}'][str(limit)]
      self.assertEqual(reached['time_s'], first['time'])
      self.assertEqual(reached['examples'], first['examples'])
      self.assertEqual(summary[f'final_{field}'], rows[-1][field])
    self.assertIsNone(summary['to_perplexity']['1.0']['time_s'])

    bits = f'{summary["final_bits_per_byte"]:.4f}'
    perplexity = f'{summary["final_perplexity"]:.3f}'
    logged = '\n'.join(logs.output)
    self.assertIn(f'bits per byte {bits}', logged)
    table = printed.getvalue()
    for label, text in (
      ('bits per byte', bits),
      ('perplexity', perplexity),
      ('test loss', f'{summary["final_test_loss"]:.4f}'),
      ('time to perplexity 1.0', '-'),
      (
        'time to training loss 2.9',
        f'{summary["to_loss"]["2.9"]["time_s"]:.2f}',
      ),
    ):
      self.assertRegex(table, rf'│ {label} +│ +{text} │')

    folder = run.files.workdir
    self.assertContainsSubset(
      {'test_loss', 'perplexity', 'bits_per_byte', 'accuracy', 'loss'},
      _board(folder),
    )
    found = analysis.read(folder)
    shown = report.measured(found, 'perplexity', 'time')
    np.testing.assert_allclose(
      shown.y, [row['perplexity'] for row in rows], rtol=1e-5
    )
    pictures = report.write_pictures(
      {'run': [found]}, tempfile.mkdtemp(), of_each=0
    )
    names = {path.stem for path in pictures}
    self.assertContainsSubset(
      {'perplexity', 'bits_per_byte-examples', 'accuracy'}, names
    )

  def test_a_worker_reads_only_the_rows_that_it_needs(self):
    directory = _folder(count=30_000)
    config = _config(directory, epochs=0.1, eval_every=1.0)
    config.cluster.workers = 1
    config.cluster.speed.slowdown = (1.0,)
    read = []
    rows_of = tokens.token_rows.TokenRows.__getitem__

    def count(self, rows):
      found = rows_of(self, rows)
      read.append(found.size)
      return found

    with absltest.mock.patch.object(
      tokens.token_rows.TokenRows, '__getitem__', count
    ):
      summary = small.build(config)()
    used = 2 * _LENGTH * summary['examples']
    evaluated = 2 * 13 * _LENGTH * 3
    self.assertLess(sum(read), 1.5 * used + evaluated + 2000)

  @parameterized.parameters(
    (
      {'data__tokens__vocabulary': 20, 'data__tokens__separator': -1},
      r'config.data.tokens.file: expected tokens below '
      r'config.data.tokens.vocabulary, 20, got 2\d at token \d+',
    ),
    (
      {'data__tokens__dtype': 'uint32', 'data__tokens__separator': -1},
      'config.data.tokens.file: expected whole tokens of 4 bytes',
    ),
    (
      {
        'data__tokens__bytes_per_token': 0.0,
        'time_to_measure__bits_per_byte': (2.0,),
      },
      r"time_to_measure.bits_per_byte: expected .* the task, \['perplexity', ",
    ),
    (
      {'time_to_measure__perplexity': 4.0},
      r'config.time_to_measure.perplexity: expected a tuple .*, got 4\.0',
    ),
  )
  def test_rejects_before_anything_starts(self, changed, message):
    directory = _folder(count=1201)
    workdir = pathlib.Path(tempfile.mkdtemp(), 'run')
    with self.assertRaisesRegex(ValueError, message):
      train.build(_config(directory, **changed), workdir=str(workdir))
    self.assertFalse(workdir.exists())

  def test_models_of_images_have_no_perplexity(self):
    with self.assertRaisesRegex(
      ValueError,
      r"config.time_to_measure.perplexity: .* the task, \['accuracy'\]",
    ):
      small.build(small.config(time_to_measure__perplexity=(3.0,)))

  def test_without_bytes_per_token_there_are_no_bits_per_byte(self):
    config = _config(_folder(), epochs=1.0, data__tokens__bytes_per_token=0.0)
    summary = small.build(config)()
    self.assertIn('final_perplexity', summary)
    self.assertNotIn('final_bits_per_byte', summary)


class RealHostsTest(processes.TestCase, parameterized.TestCase):
  def test_two_processes_report_the_figures_of_a_language_model(self):
    wire = {'wire__name': 'quantised', 'wire__quantised__bits': 4}
    fields = _fields(_folder(), **(_LOCAL | wire))
    with processes.launch(workers=2, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    summary = launch.summary
    loss = summary['final_test_loss']
    self.assertBetween(loss, 0.0, math.log(_VOCABULARY))
    self.assertAlmostEqual(summary['final_perplexity'], math.exp(loss))
    self.assertAlmostEqual(
      summary['final_bits_per_byte'], loss / math.log(2) / _BYTES
    )
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(recompute.difference(launch.folder), 0)

  @parameterized.parameters(
    {'batching__micro_batch': 1},
    {'route__name': 'ring', **_LOCAL, 'epochs': 2.0},
  )
  def test_unequal_numbers_of_targets_weigh_as_in_a_virtual_run(
    self, **changed
  ):
    fields = _masked(**changed)
    servers = int(fields.get('route__name', 'server') == 'server')
    with processes.launch(workers=2, servers=servers, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    summary = launch.summary
    speed = {'cluster__workers': 2, 'cluster__speed__slowdown': (1.0,)}
    expected = small.build(small.config(**fields, **speed))()
    for name in ('final_test_loss', 'examples', 'updates'):
      self.assertAlmostEqual(summary[name], expected[name], places=4)
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(recompute.difference(launch.folder), 0)
    replays.check(self, launch.folder)
    pushes = [r for r in launch.rows('events.jsonl') if r['event'] == 'push']
    weights = [push.get('weight', push['examples']) for push in pushes]
    self.assertIn(0, weights)
    self.assertLess(sum(weights), summary['examples'])


if __name__ == '__main__':
  absltest.main()
