"""Prediction by a simple recurrent network, from past speeds and factors.

Elman, 'Finding structure in time', 1990.  The arguments of `make` are those of
predict/recurrent.py; predict/online.py trains the network.
"""

import functools

from configs import declared
from predict import recurrent

make = declared.check_arguments('batching.lb_bsp.predictor.rnn')(
  functools.partial(recurrent.make, 'SimpleCell')
)
