"""Check of TCP's slow start after idle times (Linux).

By default, a connection that was idle for longer than its retransmission
timeout returns to slow start.  A worker's connection is idle between its pull
and its push.  Where acknowledgements queue behind other traffic, each doubling
of the window takes as long as that queue, and a slow link is not filled for
seconds.
"""

import pathlib

from absl import logging

_SETTING = 'net.ipv4.tcp_slow_start_after_idle'
_FILE = pathlib.Path('/proc/sys', *_SETTING.split('.'))


def log_advice(file: pathlib.Path = _FILE) -> None:
  """Logs advice if TCP returns to slow start after idle times.

  Args:
    file: File of the kernel's setting; other systems than Linux lack it.
  """
  if file.exists() and file.read_text().strip() != '0':
    logging.info(
      'Transfers on slow links take longer than they could: %s is not 0; see '
      '"Links" in docs/clusters.md.',
      _SETTING,
    )
