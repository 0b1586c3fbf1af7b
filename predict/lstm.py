"""Long short-term memory on past speeds and factors.

Hochreiter and Schmidhuber, 'Long short-term memory', 1997.  Its arguments:
predict/recurrent.py.  How it learns: predict/online.py.
"""

import functools

from predict import recurrent

make = functools.partial(recurrent.make, 'OptimizedLSTMCell')
