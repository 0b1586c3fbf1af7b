"""Tests for README.md and docs/: code is executed, commands are checked.

The tests execute every block of Python.  Blocks of a page share a namespace,
and a block that begins with the name of a module, such as `# my_lab/int8.py`,
becomes that module.  The tests parse the flags of every command.  They build
runs of main.py, with a small model in place of VGG, and run those without a
model, and those on pages that define a part, for a tenth of an epoch.  Commands
that need other processes, data sets, root or minutes are only parsed.
"""

import contextlib
import importlib.util
import io
import json
import pathlib
import pkgutil
import re
import shutil
import sys
import tempfile
import types
from unittest import mock

# Modules that runs import late are imported before pages add their modules:
# NumPy cannot be loaded twice.
import orbax.checkpoint  # noqa: F401
import tensorboardX  # noqa: F401
from absl.testing import absltest, parameterized

import cluster.distributed
import cluster.virtual.site  # noqa: F401  Before pages patch the modules.
import train
from configs import default, relations, sections
from examples import timing_only
from sweeps import checking, grid, plan
from tests.docs import pages

for _package in ('batching', 'learning', 'predict', 'route', 'sync', 'wire'):
  for _module in pkgutil.iter_modules([str(pages.ROOT / _package)]):
    importlib.import_module(f'{_package}.{_module.name}')

_MODULE = re.compile(r'# ([a-z]\w*)/(\w+)\.py\n')
_TARGETS = re.findall(
  r'^([a-z]+):', (pages.ROOT / 'Makefile').read_text(), re.MULTILINE
)
# Files that earlier commands of a page would have written, with examples.
_EARLIER_FILES = {
  'mine.csv': 'bench/recorded.csv',
  'runs/calibrated.py': 'configs/vgg16_ssp.py',
  'runs/measured.py': 'configs/vgg16_bsp.py',
}
_PROFILE = """{"version": 1, "curve":
{"flat_s": 0.01, "intercept_s": 0.0, "slope_s": 0.001, "most": null}}"""
_LAYERS = """{"version": 1, "layers":
[{"name": "last", "bytes": 4, "ready": 0.5}]}"""
# Programs that do not belong to this project.
_FOREIGN = ('sbatch', 'sysctl', 'kubectl', 'git', 'cd')


def _link_repository() -> str:
  """Returns a writable folder with links to the files of the repository."""
  folder = pathlib.Path(tempfile.mkdtemp())
  for path in pages.ROOT.iterdir():
    if path.name not in ('runs', '.git', '.venv'):
      (folder / path.name).symlink_to(path)
  (folder / 'runs').mkdir()
  for file, example in _EARLIER_FILES.items():
    shutil.copy(pages.ROOT / example, folder / file)
  (folder / 'profile.json').write_text(_PROFILE)
  (folder / 'layers.json').write_text(_LAYERS)
  return str(folder)


class _Page:
  """Executor of the blocks of one page, from top to bottom."""

  def __init__(self, path: pathlib.Path, stack: contextlib.ExitStack):
    stack.enter_context(contextlib.chdir(_link_repository()))
    stack.enter_context(mock.patch.dict(sys.modules))
    self.submitit = sys.modules['submitit'] = mock.MagicMock()
    self.defines_module = False
    self._module = types.ModuleType(f'page_{path.stem}')
    sys.modules[self._module.__name__] = self._module

  def python(self, block: pages.Block) -> None:
    """Executes a block."""
    code = '\n' * (block.line - 1) + block.text
    found = _MODULE.match(block.text)
    if found is None:
      exec(compile(code, self._module.__name__, 'exec'), vars(self._module))
    else:
      self.defines_module = True
      module = types.ModuleType(f'{found[1]}.{found[2]}')
      sys.modules[module.__name__] = module
      exec(compile(code, module.__name__, 'exec'), vars(module))
      vars(self._module).update(
        {name: part for name, part in vars(module).items() if name[:2] != '__'}
      )


def _check(words: list[str], *, runs: bool = False) -> str:
  """Checks a command and returns the kind of check.

  Args:
    words: Words of the command.
    runs: True to execute a run of main.py, briefly.

  Raises:
    ValueError: If the command is unknown or would be refused.
  """
  match words:
    case ['make', target]:
      if target not in _TARGETS:
        raise ValueError(f'make: expected one of {_TARGETS}, got {target!r}.')
      return 'known'
    case ['python', 'main.py', *arguments]:
      return _check_run(arguments, runs)
    case ['python', 'sweep.py', *arguments]:
      return _check_sweep(arguments)
    case ['python' | '.venv/bin/python', '-m', module, *arguments]:
      return _check_tool(module, arguments)
    case ['python', script, *_]:
      if not (pages.ROOT / script).exists():
        raise ValueError(f'python: expected a file, got {script!r}.')
      return 'known'
    case ['srun', *words]:
      return _check(words[words.index('.venv/bin/python') :])
    case ['.venv/bin/python' | '.venv/bin/pip' | '.venv/bin/ruff', *_]:
      return 'known'
    case [program, *arguments] if program in _FOREIGN:
      if program == 'sbatch':
        script = next(a for a in arguments if not a.startswith('--'))
        if not (pages.ROOT / script).exists():
          raise ValueError(f'sbatch: expected a file, got {script!r}.')
        return _check_run(arguments[arguments.index(script) + 1 :])
      return 'foreign'
  raise ValueError(f'Expected a known command, got {words}.')


def _check_run(arguments: list[str], runs: bool = False) -> str:
  """Builds the run that flags of main.py describe, or runs it for a moment."""
  config, others = pages.config(arguments)
  if config.cluster.runtime == 'distributed':
    return _check_fields(config)  # The run would wait for other processes.
  if config.data.name not in ('digits', 'synthetic'):
    return _check_fields(config)  # The run needs files.
  if config.outputs.mlflow:
    return _check_fields(config)  # The run needs MLflow.
  if config.model.init:
    return _check_fields(config)  # The run needs a file of parameters.
  config.unlock()
  config.epochs = 0.1
  if config.model.name == 'vgg' and not _differs(config.model.vgg):
    config.model.name = 'mlp'  # VGG takes seconds to build.
  if config.model.name == 'none':
    iterations = config.data.ahead + 1
    batch = config.cluster.workers * config.batching.worker_batch
    config.model.none.num_train = iterations * batch
  run = train.build(
    config,
    workdir=f'{tempfile.mkdtemp()}/run',
    process={k: v for k, v in others.items() if k != 'workdir'},
  )
  if not (runs or config.model.name == 'none'):
    run.files.release()
    return 'built'
  if run()['ended'] != 'finished':
    raise ValueError(f'Expected the run to finish: {arguments}.')
  return 'run'


def _check_sweep(arguments: list[str]) -> str:
  """Checks the first run of a sweep, and that its flags are known."""
  given = dict(w.removeprefix('--').partition('=')[::2] for w in arguments)
  known = pages.flags_of(pages.ROOT / 'sweep.py') | {'config'}
  for flag in given:
    if flag not in known and not flag.startswith('config.'):
      raise ValueError(f'sweep.py: expected one of {known}, got {flag!r}.')
  text = given.get('grid') or plan.read_grid(given['config'])
  config = [word for word in arguments if word.startswith('--config')]
  point = grid.points(text)[0]
  own = [f'--config.{field}={value}' for field, value in point.items()]
  checking.resolve((*config, *own))
  return 'checked'


def _differs(vgg) -> bool:
  """Returns whether settings of VGG differ from the defaults."""
  return vgg.to_dict() != default.get_config().model.vgg.to_dict()


def _check_fields(config) -> str:
  """Checks all fields of a config; returns the kind of check."""
  sections.check_fields(config)
  relations.check_relations(config)
  sections.check_used(config, {})
  return 'parsed'


def _check_tool(module: str, arguments: list[str]) -> str:
  """Checks the flags of a command of tools/, bench/ or examples/."""
  package, *_ = module.split('.')
  if package not in ('tools', 'bench', 'examples'):
    return 'foreign'  # pytest, sphinx.
  file = pages.ROOT / f'{module.replace(".", "/")}.py'
  if not file.exists():
    file = file.with_suffix('') / '__main__.py'
  own, _, rest = ' '.join(arguments).partition(' -- ')
  known = pages.flags_of(file)
  for word in own.split():
    flag = word.removeprefix('--').partition('=')[0]
    if not word.startswith('--') or flag.startswith('config'):
      continue
    if not {flag, flag.removeprefix('no')} & known:
      raise ValueError(f'{module}: expected one of {known}, got {word!r}.')
  if any(word.startswith('--config') for word in own.split()):
    given = [word for word in arguments if word.startswith('--config')]
    if module == 'tools.tune':  # It starts runs on real hosts.
      given.append('--config.cluster.runtime=distributed')
    _check_fields(pages.config(given)[0])
  if rest:
    _check_started(module, arguments[arguments.index('--') + 1 :], own)
  return 'parsed'


def _check_started(module: str, words: list[str], own: str) -> None:
  """Checks the command that follows `--`."""
  if module == 'tools.lab':
    if words[0] == 'python':
      _check(words)
    return
  other = re.search(r'--module=([\w.]+)', own)
  if other:
    _check_tool(other[1], words)
    return
  distributed = [*words, '--config.cluster.runtime=distributed']
  if hosts := re.search(r'--hosts_per_worker=\d+', own):
    distributed.append(f'--config.cluster.{hosts[0][2:]}')
  _check_fields(pages.config(distributed)[0])


class PageTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (pages.name(path), path) for path in pages.pages()
  )
  def test_code_and_commands_of_a_page_are_valid(self, path):
    with contextlib.ExitStack() as stack:
      page = _Page(path, stack)
      stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
      for block in pages.blocks(path):
        if block.language == 'python':
          page.python(block)
        elif block.language == 'sh':
          for words in pages.commands(block.text):
            with self.subTest(line=block.line, command=' '.join(words)):
              _check(words, runs=page.defines_module)
      for call in page.submitit.helpers.CommandFunction.call_args_list:
        self.assertEqual(_check(*call.args), 'parsed')

  def test_links_between_pages_name_existing_files(self):
    # Sphinx checks anchors; README.md is not a page of it.
    for path in pages.pages():
      for target in re.findall(r'\]\(([^)#:]+)[)#]', path.read_text()):
        self.assertTrue((path.parent / target).exists(), f'{path}: {target}')

  def test_files_that_pages_name_exist(self):
    places = r'(?:configs|bench|tools|examples|docs|sync|batching|wire|route|'
    places += r'predict|topology|learning|outputs|cluster|models|data)'
    for path in pages.pages():
      text = path.read_text()
      shown = set(re.findall(r'^# (\w+/\w+\.py)$', text, re.MULTILINE))
      for file in re.findall(rf'`({places}/[\w/]+\.\w+)`', text):
        if file not in shown and 'NAME' not in file:
          found = (pages.ROOT / file).exists()
          self.assertTrue(found, f'{pages.name(path)}: {file}')

  def test_fields_that_pages_name_exist(self):
    defaults = default.get_config()
    for path in pages.pages():
      text = path.read_text()
      own = set(re.findall(r'^config\.([\w.]+)', text, re.MULTILINE))
      for field in re.findall(r'config\.([a-z]\w*(?:\.\w+)*)', text):
        known = field in own or field.split('.')[-1] in ('py', 'get_config')
        if not known and field not in _RENAMED:
          self._assert_field(defaults, field, pages.name(path))

  def _assert_field(self, defaults, field, page):
    section = defaults
    path = re.split(r'\.own\.|(?<=time_to_measure)\.', field)[0]
    for part in path.split('.'):
      named = isinstance(section, type(defaults)) and part in section
      self.assertTrue(named, f'{page}: config.{field}')
      section = section[part]


# Former fields that pages name.
_RENAMED = ('sync.bsp.pipelined',)


class ReadmeTest(absltest.TestCase):
  def test_readme_has_at_most_200_lines(self):
    text = (pages.ROOT / 'README.md').read_text()
    self.assertLessEqual(len(text.splitlines()), 200)

  def test_an_own_scheme_takes_50_lines(self):
    block, *_ = _python('docs/own/scheme.md')
    self.assertLess(len(block.text.splitlines()), 50)

  def test_own_model_loss_and_data_take_30_lines(self):
    block, *_ = _python('docs/own/model.md')
    lines = [line for line in block.text.splitlines() if line]
    self.assertLessEqual(len(lines), 30)


def _python(page: str) -> list[pages.Block]:
  found = pages.blocks(pages.ROOT / page)
  return [block for block in found if block.language == 'python']


class FilesTest(absltest.TestCase):
  def test_every_field_of_a_run_is_described(self):
    config = timing_only.config(
      'elastic', batching='lb_bsp', workers=3, iterations=9, slow=1.0, stay=0.9
    )
    config.batching.lb_bsp.predictor.name = 'last'
    config.cluster.script = ((1.0, 'leave', 2), (2.0, 'join', 2))
    folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
    with contextlib.redirect_stdout(io.StringIO()):
      train.build(config, workdir=str(folder))()
    fields = {*json.loads((folder / 'manifest.json').read_text())}
    summary = json.loads((folder / 'summary.json').read_text())
    fields |= {*summary, *summary['lost'][0]}
    for file in ('metrics.jsonl', 'events.jsonl'):
      rows = map(json.loads, (folder / file).read_text().splitlines())
      fields |= {
        field for row in rows for field in (*row, *row.get('decision', ()))
      }
    described = (pages.ROOT / 'docs/files.md').read_text()
    for field in fields:
      self.assertIn(f'`{field}`', described)


class PictureTest(absltest.TestCase):
  def test_the_script_draws_the_picture_of_a_gradient(self):
    path = pages.ROOT / 'docs/images/gradient.py'
    spec = importlib.util.spec_from_file_location('gradient', path)
    gradient = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, gradient=gradient):
      spec.loader.exec_module(gradient)
    self.assertEqual(gradient.draw(), path.with_suffix('.svg').read_text())
    for box in (*gradient.VIRTUAL, *gradient.REAL):
      for module in box.module.split(', '):
        found = [*pages.ROOT.glob(f'**/{module}')]
        self.assertTrue(found, module)


if __name__ == '__main__':
  absltest.main()
