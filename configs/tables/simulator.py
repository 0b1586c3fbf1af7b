"""The virtual clock beside runs on real links, which it was not fitted to."""

from configs.published import Claim, Entry, Measure

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
  'and LB-BSP; float32 and bfloat16; .5 and 1 MB. A run has about 3 s; its '
  'first quarter is left out. 78 conditions, drawn by a fixed seed; quick runs '
  '24 of them',
  differs='nothing is fitted: virtual links are nominal, less what frames and '
  'their headers take, without latency; compute times are slept, so that only '
  'links, schemes and batches are predicted; all hosts share 2 cores',
  claims=(
    _claim('median', 0.02, 0.04),
    _claim('p95', 0.05, 0.1),
    _claim('worst', 0.1, 0.2),
  ),
  measured='lab',
  seen='BSP with servers is missed by 1.5 % in the median and 3 % at most (12 '
  'conditions), routes among workers by 1.3 % and 7 % (30). Large misses have '
  'two reasons. Asynchronous schemes (32: 2.8 % and 35 %): virtual links are '
  'shared equally, which keeps equal workers in step, while TCP does not share '
  'equally, so that some push while others pull; by chance. Pipelined BSP (4: '
  '18 % and 34 %): a superstep takes some 45 ms longer on real hosts with 1 MB '
  'or half of it to send, and 11 ms with 2 MB.',
  seeds={'quick': 1, 'full': 1},
  ranked=('miss', 'virtual_s', 'real_s'),
  listed=('lab', 'condition'),
)
