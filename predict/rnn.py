"""Prediction by a simple recurrent network, from past speeds and factors.

Elman, 'Finding structure in time', 1990.  The arguments of `make` are those of
predict/recurrent.py; predict/online.py trains the network.
"""

import functools

from predict import recurrent

make = functools.partial(recurrent.make, 'SimpleCell')
