"""Waits that ElasticBSP's search predicts, beside real ones."""

from claims.published import Claim, Entry, Measure, near

ENTRY = Entry(
  family='ElasticBSP',
  title='Predicted and real waits at barriers',
  published_setup='the search minimises the predicted wait; predictions repeat '
  'the last interval; no real wait was found beside a predicted one',
  our_setup='4 workers, 1, 1.5, 2 and 3 times as slow, lognormal iterations '
  'with 1 and 10 % jitter; 200 searches with R = 15 and 240; means',
  differences='no links: what is lost is lost by jitter alone',
  claims=tuple(
    Claim(
      text=f'the predicted wait is the real one: real over predicted, R = '
      f'{lookahead}, {sigma:.0%} jitter',
      source='ElasticBSP, text',
      mark='derived',
      paper=1.0,
      measure=Measure('real_over_predicted', {'sigma': sigma, 'R': lookahead}),
      confirmed=near(1.0, 0.25),
      shape=near(1.0, 0.5),
    )
    for sigma in (0.01, 0.1)
    for lookahead in (15, 240)
  ),
  measurement='waits',
)
