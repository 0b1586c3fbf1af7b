"""Claims about seven schemes at their own rates; not an entry."""

from claims.published import LESS, MORE, Claim, Measure, Range
from configs import tuned

_HIGHER, _LOWER = (0.0, 1.0), (-1.0, 0.0)
_ELASTIC = 'ElasticBSP, figure of AlexNet'
_NAMES = {
  'bsp': 'BSP',
  'lb_bsp': 'LB-BSP',
  'ssp': 'SSP',
  'asp': 'ASP',
  'dssp': 'DSSP',
  'elastic': 'ElasticBSP',
  'r2sp': 'R2SP',
}
_ACCURACY = 'final_accuracy', 'final accuracy'
_Quantity = tuple[str, str]  # Field of the records, and text.


def claims(
  *, loss: _Quantity, time: _Quantity, over: str = ''
) -> tuple[Claim, ...]:
  """Returns claims about accuracy, loss, time and waiting of seven schemes.

  Args:
    loss: Field of the records that has the final loss, and its text.
    time: Field that has the time to a level, and its text.
    over: Field over whose values a number of a seed is the mean, or ''.
  """
  return (
    *_of_accuracy(over),
    *_of_loss(loss, over),
    *_of_time(time, over),
    Claim(
      text='stragglers are eliminated: share of waiting under LB-BSP',
      source='LB-BSP, text: all workers finish together',
      mark='derived',
      measure=Measure('waiting_share', tuned.of('lb_bsp'), mean_over=over),
      confirmed=(0.0, 0.05),
      shape=(0.0, 0.2),
    ),
    _over(time, over, 'lb_bsp', 'elastic', 'ours', 'ours', LESS),
    _over(time, over, 'lb_bsp', 'asp', 'ours', 'ours', LESS),
  )


def _of_accuracy(over: str) -> tuple[Claim, ...]:
  return (
    _minus(over, 'elastic', 'bsp', _ELASTIC, 'read off', _HIGHER, 0.035),
    _minus(over, 'elastic', 'asp', _ELASTIC, 'derived', _HIGHER, 0.07),
    _minus(over, 'elastic', 'ssp', _ELASTIC, 'derived', _HIGHER, 0.07),
    _minus(over, 'asp', 'bsp', _ELASTIC, 'read off', _LOWER, -0.035),
    _minus(
      *(over, 'lb_bsp', 'bsp', 'LB-BSP, text', 'derived', (-0.02, 0.02)),
      confirmed=(-0.01, 0.01),
    ),
  )


def _of_loss(loss: _Quantity, over: str) -> tuple[Claim, ...]:
  after = 'ours, after ElasticBSP'
  return (
    _over(loss, over, 'elastic', 'bsp', after, 'ours', LESS),
    _over(loss, over, 'elastic', 'asp', after, 'ours', LESS),
    _over(loss, over, 'asp', 'bsp', after, 'ours', MORE),
    _over(loss, over, 'r2sp', 'asp', 'ours, after R2SP', 'ours', LESS),
    _over(
      *(loss, over, 'lb_bsp', 'bsp', 'LB-BSP, text', 'derived', (0.9, 1.1)),
      confirmed=(0.95, 1.05),
    ),
  )


def _of_time(time: _Quantity, over: str) -> tuple[Claim, ...]:
  return (
    _over(time, over, 'elastic', 'bsp', _ELASTIC, 'read off', LESS, 0.55),
    _over(time, over, 'elastic', 'ssp', _ELASTIC, 'read off', LESS, 0.44),
    _over(
      *(time, over, 'elastic', 'asp', 'ours, after ElasticBSP', 'ours', LESS)
    ),
    _over(time, over, 'dssp', 'bsp', 'DSSP, table I', 'found', LESS, 0.49),
    _over(time, over, 'dssp', 'ssp', 'DSSP, table I', 'found', LESS, 0.531),
    _over(time, over, 'r2sp', 'bsp', 'R2SP, figure 7', 'found', LESS, 0.825),
    _over(time, over, 'r2sp', 'asp', 'R2SP, figure 7', 'derived', LESS),
    _over(
      *(time, over, 'lb_bsp', 'bsp'),
      'LB-BSP, abstract: up to 2 times as fast',
      *('abstract', LESS),
      confirmed=(0.0, 0.8),
    ),
  )


def _over(
  quantity: _Quantity,
  over: str,
  scheme: str,
  other: str,
  source: str,
  mark: str,
  shape: Range,
  paper: float | None = None,
  confirmed: Range | None = None,
) -> Claim:
  """Returns a claim about a ratio of a quantity under two schemes."""
  field, text = quantity
  return Claim(
    text=f'{text}, {_NAMES[scheme]} over {_NAMES[other]}',
    source=source,
    mark=mark,
    paper=paper,
    measure=Measure(
      field, tuned.of(scheme), by=tuned.of(other), mean_over=over
    ),
    confirmed=confirmed,
    shape=shape,
  )


def _minus(
  over: str,
  scheme: str,
  other: str,
  source: str,
  mark: str,
  shape: Range,
  paper: float | None = None,
  confirmed: Range | None = None,
) -> Claim:
  """Returns a claim about a difference of accuracies of two schemes."""
  field, text = _ACCURACY
  return Claim(
    text=f'{text}, {_NAMES[scheme]} minus {_NAMES[other]}',
    source=source,
    mark=mark,
    paper=paper,
    measure=Measure(
      field, tuned.of(scheme), minus=tuned.of(other), mean_over=over
    ),
    confirmed=confirmed,
    shape=shape,
  )
