"""Prediction by a long short-term memory, from past speeds and factors.

Hochreiter and Schmidhuber, 'Long short-term memory', 1997.  The arguments of
`make` are those of predict/recurrent.py; predict/online.py trains the network.
"""

import functools

from configs import declared
from predict import recurrent

make = declared.check_arguments('batching.lb_bsp.predictor.lstm')(
  functools.partial(recurrent.make, 'OptimizedLSTMCell')
)
