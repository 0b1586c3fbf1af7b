"""A headless Chromium that a test drives, over its debugging pipe."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any

_NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
_FLAGS = (
  *('--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run'),
  *('--disable-dev-shm-usage', '--disable-background-networking'),
  '--remote-debugging-pipe',
)
_END = b'\0'  # Of a message.


def path() -> str | None:
  """Returns the program of a browser, if there is one."""
  return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
  """One page of a browser that lives until `close`.

  Attributes:
    problems: Errors of the page and of its console so far.
  """

  def __init__(self):
    self.problems: list[str] = []
    self._number = 0
    self._buffer = b''
    self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    read, self._write = os.pipe()
    self._read, write = os.pipe()
    command = f'exec "$@" 3<&{read} 4>&{write}'
    flags = [*_FLAGS, f'--user-data-dir={self._home.name}', 'about:blank']
    self._process = subprocess.Popen(
      ['bash', '-c', command, 'bash', path(), *flags],
      pass_fds=(read, write),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(read)
    os.close(write)
    self._session: dict[str, str] = {}
    targets = self._call('Target.getTargets')['targetInfos']
    page = next(each for each in targets if each['type'] == 'page')
    told = {'targetId': page['targetId'], 'flatten': True}
    found = self._call('Target.attachToTarget', **told)
    self._session = {'sessionId': found['sessionId']}
    for domain in ('Page', 'Runtime', 'Log'):
      self._call(f'{domain}.enable')

  def show(self, width: int, height: int, *, dark: bool) -> None:
    """Makes the page so many pixels wide and high, light or dark."""
    self._call(
      'Emulation.setDeviceMetricsOverride',
      width=width,
      height=height,
      deviceScaleFactor=1,
      mobile=False,
    )
    scheme = 'dark' if dark else 'light'
    feature = {'name': 'prefers-color-scheme', 'value': scheme}
    self._call('Emulation.setEmulatedMedia', features=[feature])

  def open(self, file: pathlib.Path) -> None:
    """Opens a file, and waits until its script says that it is ready."""
    self._call('Page.navigate', url=file.resolve().as_uri())
    self.until('document.documentElement?.dataset.ready')

  def until(self, expression: str, timeout_s: float = 30.0) -> None:
    """Waits until an expression is true.

    Raises:
      TimeoutError: If that takes too long.
    """
    end = time.monotonic() + timeout_s
    while not self.run(f'Boolean({expression})'):
      if time.monotonic() > end:
        raise TimeoutError(f'{expression}; problems: {self.problems}')
      time.sleep(0.05)

  def run(self, expression: str) -> Any:
    """Returns what an expression of JavaScript comes to, as JSON."""
    found = self._call(
      'Runtime.evaluate', expression=expression, returnByValue=True
    )
    if 'exceptionDetails' in found:
      raise ValueError(f'{expression}: {found["exceptionDetails"]}')
    return found['result'].get('value')

  def picture(self, *, whole: bool = False) -> bytes:
    """Returns what is seen as PNG; `whole` also what is below."""
    found = self._call(
      'Page.captureScreenshot', format='png', captureBeyondViewport=whole
    )
    return base64.b64decode(found['data'])

  def close(self) -> None:
    """Ends the browser."""
    self._session = {}
    os.write(self._write, b'{"id":0,"method":"Browser.close"}\0')
    try:
      self._process.wait(timeout=10)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    os.close(self._write)
    os.close(self._read)
    self._home.cleanup()

  def _call(self, method: str, **told: Any) -> dict[str, Any]:
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': told}
    os.write(self._write, json.dumps(message | self._session).encode() + _END)
    while True:
      answer = self._message()
      if answer.get('id') == self._number:
        if 'error' in answer:
          raise ValueError(f'{method}: {answer["error"]}')
        return answer['result']
      self._note(answer)

  def _note(self, event: dict[str, Any]) -> None:
    told = event.get('params', {})
    match event.get('method'):
      case 'Runtime.exceptionThrown':
        self.problems.append(str(told['exceptionDetails']))
      case 'Runtime.consoleAPICalled' if told['type'] in ('error', 'warning'):
        self.problems.append(str(told['args']))
      case 'Log.entryAdded' if told['entry']['level'] in ('error', 'warning'):
        self.problems.append(str(told['entry']))

  def _message(self) -> dict[str, Any]:
    while _END not in self._buffer:
      part = os.read(self._read, 1 << 20)
      if not part:
        raise RuntimeError('The browser has ended.')
      self._buffer += part
    text, _, self._buffer = self._buffer.partition(_END)
    return json.loads(text)
