"""Number of pieces in which pipelined parameter servers move each share.

Every piece costs processor time of the host whatever its size, so that there
are few of them, and none is small.  Both runtimes use these numbers.
"""

# Most pieces of all shares together, and least bytes of one.
MAX_PIECES, MIN_PIECE_BYTES = 64, 2**14
# Pieces that a worker sends before the first one has come back.  The limit
# keeps workers at the same piece, and queues at the links short.
AHEAD = 4


def pieces_per_share(servers: int, push_bytes: int) -> int:
  """Returns the number of pieces in which each share travels.

  Args:
    servers: Number of shares.
    push_bytes: Bytes of a worker's push to all servers.
  """
  pieces = min(MAX_PIECES, push_bytes // MIN_PIECE_BYTES)
  return max(1, pieces // servers)
