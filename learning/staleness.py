"""Weights of pushes by their staleness.

The staleness of a push is the number of versions that were applied between its
worker's pull and its arrival.  The numbers of a push, a gradient or a
displacement, are multiplied by its weight before they are summed into an
update; the number of examples by which the sum is divided stays, so that a
stale push moves the parameters, and momentum, by less.
"""

from collections.abc import Callable

from configs import declared
from configs.sections import Choose, error_prefix

# Function of the staleness, versions, that returns the weight.
Weight = Callable[[int], float]


def constant() -> Weight:
  """Returns the weight 1, whatever the staleness."""
  return lambda staleness: 1.0


@declared.check_arguments('staleness.polynomial')
def polynomial(*, exponent: float) -> Weight:
  """Returns the weight (1 + staleness)^-exponent.

  With an exponent of 1/2 it is the weight in the example released with Liu et
  al., 'Asynchronous Local-SGD training for language modeling', arXiv
  2401.09135.

  Example:
    >>> weight = polynomial(exponent=0.5)
    >>> weight(0), weight(3)
    (1.0, 0.5)
  """

  def weight(staleness: int) -> float:
    return float((1 + staleness) ** -exponent)

  return weight


def make(choose: Choose) -> Weight:
  """Returns the weight that config.staleness names.

  Args:
    choose: Function that chooses a section of the config.

  Raises:
    ValueError: If a setting is wrong; names the field.
  """
  name, own = choose('staleness')
  functions: dict[str, Callable[..., Weight]] = {
    'constant': constant,
    'polynomial': polynomial,
  }
  with error_prefix(f'config.staleness.{name}'):
    return functions[name](**own)
