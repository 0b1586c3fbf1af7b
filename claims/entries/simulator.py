"""The virtual clock beside runs on real links, which it was not fitted to."""

from claims.published import Claim, Entry, Measure

_ALL = {'part': 'all'}


def _claim(what: str, most: float, shape: float) -> Claim:
  return Claim(
    text=f'the virtual clock misses the time of an iteration by at most '
    f'{most}: {what} over all conditions',
    source='ours; others say 3 to 4 % in the mean',
    mark='ours',
    measure=Measure(what, _ALL),
    confirmed=(0.0, most),
    shape=(0.0, shape),
  )


ENTRY = Entry(
  family='simulator',
  title='Predicted against measured times of iterations',
  theirs='simulators of training elsewhere say that they miss by 3 to 4 %',
  ours='2 to 8 workers in a lab (tools.lab), compute times slept, with 10 % '
  'jitter and half of them unequal; links of 100 and 200 Mbit/s, unequal ones, '
  'and two racks with 50 between them; six schemes, pipelined BSP and four '
  'routes among workers; servers of their own and in workers; equal batches '
  'and LB-BSP; float32 and bfloat16; .5 and 1 MB. A run has about 12 s; its '
  'first quarter is left out. 78 conditions, drawn by a fixed seed; quick runs '
  '24 of them for 3 s',
  differs='nothing is fitted: virtual links are nominal, less what frames and '
  'their headers take, without latency; compute times are slept, so that only '
  'links, schemes and batches are predicted; all hosts share 2 cores',
  claims=(
    _claim('median', 0.02, 0.04),
    _claim('p95', 0.05, 0.1),
    _claim('worst', 0.1, 0.2),
  ),
  measured='lab',
  seen='routes among workers are missed by 1.7 % in the median and 10 % at '
  'most (30 conditions), BSP with servers by 2.3 % and 9 % (12), pipelined BSP '
  'by 6 % and 10 % (4), asynchronous schemes by 3.2 % and 34 % (32). The three '
  'that are more than 15 % off are ElasticBSP with eight equal workers, which '
  'real links let go on sooner: virtual workers that are equal stay in step.',
  seeds={'quick': 1, 'full': 1},
  ranked=('miss', 'virtual_s', 'real_s'),
  listed=('lab', 'condition'),
)
