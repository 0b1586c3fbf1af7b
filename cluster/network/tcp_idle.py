"""Whether TCP of this host forgets, in pauses, how much its links carry.

By Linux's default it does: a connection that has been idle for longer than its
retransmission timeout starts slowly again.  A worker's is, between its pull and
its push.  Where acknowledgements queue behind what others send, each doubling
takes as long as that queue, and a slow link is not filled for seconds.
"""

import pathlib

from absl import logging

_SETTING = 'net.ipv4.tcp_slow_start_after_idle'
_FILE = pathlib.Path('/proc/sys', *_SETTING.split('.'))


def tell(file: pathlib.Path = _FILE) -> None:
  """Logs what to do if TCP starts slowly after pauses.

  Args:
    file: Where the kernel has the setting; other systems than Linux lack it.
  """
  if file.exists() and file.read_text().strip() != '0':
    logging.info(
      'Transfers on slow links take longer than they could: %s is not 0; see '
      '"Links" in docs/clusters.md.',
      _SETTING,
    )
