"""LB-BSP's predictor NARX beside others: error and overhead."""

from claims.published import LESS, Claim, Entry, Measure

_OTHERS = 'last', 'ema', 'arima', 'rnn', 'lstm'
_KINDS = {
  'driven': 'speeds that load drives',
  'bursts': 'bursts of load that is read with noise',
  'regimes': 'regimes without factors',
  'idle factors': 'factors that say nothing',
}


def _of(kind: str, predictor: str) -> dict[str, object]:
  return {'kind': kind, 'predictor': predictor}


ENTRY = Entry(
  family='LB-BSP',
  title='Prediction of speeds by NARX, and by others',
  published_setup='NARX of past speeds and of past and current CPU and '
  'memory, beside others, whose names and errors were not found',
  our_setup='synthetic traces of 4 workers, 300 iterations '
  '(bench/synthetic.py), root mean squares over the last 30 % of each; our '
  'NARX, which a gate weighs',
  differences='traces and hyper-parameters, which were chosen on other seeds '
  'of such traces',
  claims=(
    *(
      Claim(
        text=f'{label}: error, NARX over {other}',
        source='LB-BSP, SoCC 2020: NARX beside others',
        mark='secondary',
        measure=Measure('rmse', _of(kind, 'narx'), _of(kind, other)),
        confirmed=(0.0, 0.95),
        shape=LESS,
      )
      for kind, label in _KINDS.items()
      for other in _OTHERS
      if kind != 'idle factors'
    ),
    Claim(
      text='factors that say nothing: error, NARX over the better of last and '
      'EMA',
      source='ours',
      mark='ours',
      measure=Measure(
        'rmse', _of('idle factors', 'narx'), _of('idle factors', 'yardstick')
      ),
      confirmed=(0.0, 1.05),
      shape=(0.0, 1.2),
    ),
    *(
      Claim(
        text=f'{_KINDS[kind]}: error of NARX without current factors over with',
        source='LB-BSP, text: current factors drive',
        mark='derived',
        measure=Measure('rmse', _of(kind, 'narx, late'), _of(kind, 'narx')),
        confirmed=(1.05, 100.0),
        shape=(1.0, 100.0),
      )
      for kind in ('driven', 'bursts')
    ),
    Claim(
      text='overhead: milliseconds to predict and observe 4 workers, NARX',
      source='LB-BSP, SoCC 2020: a test of overhead',
      mark='secondary',
      measure=Measure('ms', _of('cost', 'narx')),
      confirmed=(0.0, 5.0),
      shape=(0.0, 20.0),
    ),
  ),
  observations='The second trace was first named as regimes that CPU load '
  'shows; it has no factors, and NARX is as good as LSTM and RNN there. The '
  'name was corrected and bursts were added after those runs.',
  measurement='prediction',
)
