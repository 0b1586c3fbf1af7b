"""Parts of the entries on local steps; not an entry."""

from collections.abc import Mapping

from claims.published import LESS, MORE, Claim, Measure
from configs import local_steps

DILOCO = 'DiLoCo (arXiv 2311.08105), abstract'
ASYNC = 'Asynchronous Local-SGD (arXiv 2401.09135), abstract'
_SOURCES = {
  DILOCO: 'abstract',
  ASYNC: 'abstract',
  'SNOO (arXiv 2510.15830), abstract': 'abstract',
  'ours': 'ours',
}
SNOO = [*_SOURCES][2]
_WITHIN_ACCURACY = -0.02, 1.0  # Difference of accuracies.
_WITHIN_BITS = 0.0, 1.05  # Ratio of bits per byte.
_BETTER_ACCURACY = 0.0, 1.0


def of(method: str) -> dict[str, object]:
  """Returns the fields that select the records of a method, at any rates."""
  workers, _, sync, steps, batching, _, _, outer = local_steps.METHODS[method]
  return {
    'cluster.workers': int(workers),
    'sync.name': sync,
    'batching.local_steps': int(steps),
    'batching.name': batching or 'fixed',
    'outer.name': outer or 'sgd',
  }


def grid(rates: Mapping[str, tuple[float, float | None]]) -> str:
  """Returns the grid of methods with the inner and outer rate of each."""
  return local_steps.grid((name, *pair) for name, pair in rates.items())


def claim(
  text: str,
  source: str,
  measure: Measure,
  shape: tuple[float, float],
) -> Claim:
  """Returns a claim that is in shape at most: model and data are others."""
  return Claim(text, source, _SOURCES[source], measure=measure, shape=shape)


def fewer_bytes(method: str, steps: int) -> Claim:
  """Returns the claim that BSP sends at least H / 2 times the bytes."""
  return Claim(
    f'bytes, BSP over {_name(method)}: at least H / 2',
    DILOCO,
    'abstract',
    measure=Measure('bytes', of('bsp'), of(method)),
    confirmed=(steps / 2, MORE[1]),
    unfalsifiable='a push every H steps sends so much less; tests hold it',
  )


def as_good(method: str, other: str, source: str, *, in_bits: bool) -> Claim:
  """Returns the claim that a method ends as well as another one.

  The margin is .02 of accuracy, or 5 % of bits per byte.
  """
  pair = f'{_name(method)} and {_name(other)}'
  if in_bits:
    measure = Measure('final_bits_per_byte', of(method), by=of(other))
    text = f'final bits per byte over those of the other, at most 1.05: {pair}'
    return claim(text, source, measure, _WITHIN_BITS)
  measure = Measure('final_accuracy', of(method), minus=of(other))
  text = f'final accuracy minus that of the other, at least -.02: {pair}'
  return claim(text, source, measure, _WITHIN_ACCURACY)


def better(method: str, other: str, source: str, *, in_bits: bool) -> Claim:
  """Returns the claim that a method ends better than another one."""
  pair = f'{_name(method)} better than {_name(other)}'
  if in_bits:
    measure = Measure('final_bits_per_byte', of(method), by=of(other))
    return claim(f'final bits per byte: {pair}', source, measure, LESS)
  measure = Measure('final_accuracy', of(method), minus=of(other))
  return claim(f'final accuracy: {pair}', source, measure, _BETTER_ACCURACY)


def ratio(
  text: str,
  field: str,
  method: str,
  other: str,
  source: str,
  shape: tuple[float, float],
) -> Claim:
  """Returns a claim about a field of a method over that of another one."""
  pair = f'{_name(method)} over {_name(other)}'
  measure = Measure(field, of(method), of(other))
  return claim(f'{text}, {pair}', source, measure, shape)


def asynchronous(level: str, *, in_bits: bool) -> tuple[Claim, ...]:
  """Returns Asynchronous Local-SGD's claims about the methods of text.

  Args:
    level: Accuracy whose first time counts.
    in_bits: Whether final bits per byte count, and not accuracy.
  """
  examples, time = f'examples_to.{level}', f'time_to.{level}'
  return (
    ratio(
      f'naive asynchrony with outer momentum needs more examples to {level}, '
      'or never gets there',
      *(examples, 'asp_naive', 'local_32', ASYNC, MORE),
    ),
    as_good('elastic_balanced', 'local_32', ASYNC, in_bits=in_bits),
    ratio(
      'time of as many examples',
      *('time_s', 'elastic_balanced', 'local_32', ASYNC, LESS),
    ),
    ratio(
      f'time to {level}',
      *(time, 'elastic_balanced', 'local_32', ASYNC, LESS),
    ),
    Claim(
      'the same with balanced steps under ASP',
      ASYNC,
      'abstract',
      unavailable='LB-BSP divides steps at barriers, which ASP has not; '
      'ElasticBSP is asynchronous between barriers',
    ),
  )


def _name(method: str) -> str:
  return method.replace('_', ' ')
