"""LB-BSP's gain with NARX, and NARX's error, on recorded speeds."""

import math

from claims.measures import traces
from claims.published import LESS, MORE, Claim, Entry, Measure

_TRACES = 'recorded', *(f'PAI {job}' for job in traces.PAI_JOBS)
_GAIN = 1.05, math.inf
_NARX = 'LB-BSP, SoCC 2020: NARX beside others'


def _of(trace: str, batching: str) -> dict[str, object]:
  return {'trace': trace, 'batching': batching}


def _error(trace: str, predictor: str) -> Measure:
  return Measure(
    'rmse',
    {'trace': trace, 'predictor': 'narx'},
    {'trace': trace, 'predictor': predictor},
  )


def _claims(trace: str) -> tuple[Claim, ...]:
  narx = _of(trace, 'narx')
  beside_last = Measure('efficiency', narx, _of(trace, 'last'))
  return (
    Claim(
      text=f'{trace}: NARX gains: examples/s of LB-BSP, NARX over last',
      source=_NARX,
      mark='secondary',
      measure=beside_last,
      confirmed=_GAIN,
      shape=MORE,
    ),
    Claim(
      text=f'{trace}: NARX gains next to nothing: examples/s of LB-BSP, NARX '
      'over last, within 2 %',
      source='ours',
      mark='ours',
      measure=beside_last,
      confirmed=(0.98, 1.02),
      shape=(0.95, 1.05),
    ),
    Claim(
      text=f'{trace}: examples/s, LB-BSP with NARX over equal batches',
      source='LB-BSP, abstract',
      mark='abstract',
      measure=Measure('efficiency', narx, _of(trace, 'fixed')),
      confirmed=_GAIN,
      shape=MORE,
    ),
    Claim(
      text=f"{trace}: share of an oracle's gain over equal batches, NARX",
      source='ours',
      mark='ours',
      measure=Measure('of_oracle', narx),
      confirmed=(0.5, 1.0),
      shape=(0.25, 1.0),
    ),
    *(
      Claim(
        text=f'{trace}: error, NARX over {other}',
        source=_NARX,
        mark='secondary',
        measure=_error(trace, other),
        confirmed=(0.0, 0.95),
        shape=LESS,
      )
      for other in ('last', 'ema', 'arima', 'lstm')
    ),
  )


ENTRY = Entry(
  family='LB-BSP',
  title='LB-BSP with NARX on recorded speeds',
  published_setup='NARX of past speeds and of past and current CPU and memory '
  'on real clusters; names and errors of the other predictors were not found',
  our_setup='supersteps without links, batches of 32 in the mean; '
  'bench/recorded.csv (4 workers, 1,305 iterations, with CPU and memory) and '
  'two jobs of the 2020 PAI trace (10 workers, 300 and 248 values, without '
  'factors); an oracle knows the next speeds; errors are root mean squares '
  'over the last 30 %',
  differences='other traces; seeds begin a trace at another sixth and change '
  "the networks' parameters, so that intervals are those of starts and "
  'networks and not of clusters. PAI recorded about every tenth iteration',
  claims=tuple(claim for trace in _TRACES for claim in _claims(trace)),
  observations='The numbers of a run from the start of each trace were known '
  'from bench.batching and bench.predict before the rules were written: .836 '
  'with last and .835 with NARX on the recording, .940 and .946 on job 3.',
  measurement='traces',
)
