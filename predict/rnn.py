"""A simple recurrent network (Elman, 1990) on past speeds and factors.

Its arguments: predict/recurrent.py.  How it learns: predict/online.py.
"""

import functools

from predict import recurrent

make = functools.partial(recurrent.make, 'SimpleCell')
