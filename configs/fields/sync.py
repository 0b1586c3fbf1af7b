"""Fields of config.sync."""

import math

from configs.fields.field import (
  Field,
  Section,
  count,
  fraction,
  natural,
  nonnegative,
  seconds,
  share,
)

_GRACE_S = seconds(
  0.0, 'Pushes within this time are merged into one update; 0 for none.'
)

SYNC = Section(
  'When may a worker continue?',
  name=Field('bsp', 'Module of sync/, or your own.'),
  own=Section(),
  bsp=Section('Bulk synchronous: every iteration ends with a barrier.'),
  asp=Section('Asynchronous: no worker waits.', grace_s=_GRACE_S),
  ssp=Section(
    'Stale synchronous: the lead is bounded.',
    bound=natural(
      3, 'Largest lead over the slowest worker.', unit='iterations'
    ),
    grace_s=_GRACE_S,
  ),
  dssp=Section(
    'Dynamic SSP: the bound of the lead changes with predicted waits.',
    low=natural(
      3, 'Lead up to which every worker continues.', unit='iterations'
    ),
    high=natural(15, 'Largest lead, at least `low`.', unit='iterations'),
    as_printed=Field(
      False,
      'Whether to grant as the printed pseudo-code does, without a bound of '
      'the lead; high - low is then the largest grant.',
    ),
    grace_s=_GRACE_S,
  ),
  elastic=Section(
    'ElasticBSP: a search finds the next barrier among predicted pushes.',
    lookahead=count(15, 'Predicted pushes per worker (R).'),
    monitor_pushes=Field(
      2, 'Pushes of every worker before the search for a barrier.', at_least=2
    ),
    bound=nonnegative(
      math.inf,
      'Largest lead since the last barrier; inf for no bound.',
      unit='iterations',
      whole=True,
      infinite=True,
    ),
  ),
  quorum=Section(
    'A round ends a grace window after the pushes of a quorum.',
    minimum=count(
      2, 'Pushes of a round before it can end, at most the number of workers.'
    ),
    grace=nonnegative(
      0.25, 'Grace window, as a share of the time of the round before it.'
    ),
    late=Field(
      'count',
      "Fate of late pushes: 'count' adds them to the next update, 'drop' "
      'gives their examples back.',
      choices=('count', 'drop'),
    ),
  ),
  r2sp=Section(
    'R2SP: releases at equal gaps, one worker after the other.',
    relaxation=fraction(
      0.8,
      'Gap between two releases as a share of T / N (r): T is the average time '
      'of an iteration, N the number of workers.',
    ),
    smoothing=share(
      0.1, 'Weight of the newest iteration time in the average T.'
    ),
  ),
)
