"""Headless Chromium, controlled over its debugging pipe, for tests."""

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
_END = b'\0'  # End of a message.


def path() -> str | None:
  """Returns the program of a browser, if there is one."""
  return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
  """Browser with one page, which runs until `close`.

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
    arguments = {'targetId': page['targetId'], 'flatten': True}
    answer = self._call('Target.attachToTarget', **arguments)
    self._session = {'sessionId': answer['sessionId']}
    for domain in ('Page', 'Runtime', 'Log'):
      self._call(f'{domain}.enable')

  def show(self, width: int, height: int, *, dark: bool) -> None:
    """Sets the size of the page in pixels, and its color scheme."""
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
    """Opens a file, and waits until its script marks the page as ready."""
    self._call('Page.navigate', url=file.resolve().as_uri())
    self.until('document.documentElement?.dataset.ready')

  def until(self, expression: str, timeout_s: float = 30.0) -> None:
    """Waits until an expression is true.

    Raises:
      TimeoutError: If the expression is false for `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    while not self.run(f'Boolean({expression})'):
      if time.monotonic() > end:
        raise TimeoutError(f'{expression}; problems: {self.problems}')
      time.sleep(0.05)

  def run(self, expression: str) -> Any:
    """Returns the value of an expression of JavaScript."""
    answer = self._call(
      'Runtime.evaluate', expression=expression, returnByValue=True
    )
    if 'exceptionDetails' in answer:
      raise ValueError(f'{expression}: {answer["exceptionDetails"]}')
    return answer['result'].get('value')

  def picture(self, *, whole: bool = False) -> bytes:
    """Returns a picture of the page as PNG.

    Args:
      whole: True for the whole page, not only the visible part.
    """
    answer = self._call(
      'Page.captureScreenshot', format='png', captureBeyondViewport=whole
    )
    return base64.b64decode(answer['data'])

  def close(self) -> None:
    """Closes the browser and waits for the end of its process."""
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

  def _call(self, method: str, **params: Any) -> dict[str, Any]:
    self._number += 1
    message = {'id': self._number, 'method': method, 'params': params}
    os.write(self._write, json.dumps(message | self._session).encode() + _END)
    while True:
      answer = self._message()
      if answer.get('id') == self._number:
        if 'error' in answer:
          raise ValueError(f'{method}: {answer["error"]}')
        return answer['result']
      self._record_problem(answer)

  def _record_problem(self, event: dict[str, Any]) -> None:
    params = event.get('params', {})
    match event.get('method'):
      case 'Runtime.exceptionThrown':
        self.problems.append(str(params['exceptionDetails']))
      case 'Runtime.consoleAPICalled' if params['type'] in ('error', 'warning'):
        self.problems.append(str(params['args']))
      case 'Log.entryAdded' if params['entry']['level'] in ('error', 'warning'):
        self.problems.append(str(params['entry']))

  def _message(self) -> dict[str, Any]:
    while _END not in self._buffer:
      part = os.read(self._read, 1 << 20)
      if not part:
        raise RuntimeError('The browser has ended.')
      self._buffer += part
    text, _, self._buffer = self._buffer.partition(_END)
    return json.loads(text)
