"""Findings of the ledger that matter to users, each from one of its claims."""

from typing import NamedTuple


class Finding(NamedTuple):
  """Finding that a claim's numbers support.

  Attributes:
    text: The finding, in one sentence.
    entry: Name of the entry.
    claim: Text of the claim.
  """

  text: str
  entry: str
  claim: str


FINDINGS = (
  Finding(
    'With three of eight workers 1.5 to 4 times as slow, batches in proportion '
    'to speeds (LB-BSP) halve the time to an accuracy of BSP.',
    'combined_workers',
    'BSP: time to .93, LB-BSP over equal',
  ),
  Finding(
    "ElasticBSP's higher accuracy is one of its rate: BSP at n times the rate "
    'has it, too.',
    'elastic_accuracy',
    'equal workers: final accuracy, ElasticBSP minus BSP at n times the rate: '
    'higher',
  ),
  Finding(
    "ElasticBSP's R does not bound leads beside a very slow worker; set "
    '`config.sync.elastic.bound`.',
    'elastic_lead',
    'R = 15 bounds leads: largest lead since a barrier, slowest 30 times as '
    'slow',
  ),
  Finding(
    'DSSP as printed does not bound leads either; the default here does.',
    'dssp_lead',
    'as printed: largest lead, slowest 10 times as slow',
  ),
  Finding(
    'A server that needs most of an iteration for its updates makes ASP slower '
    'than BSP; in the virtual cluster it needs none by default.',
    'server_cost',
    'ResNet-50, updates at 0.5 GB/s: time of an iteration, asp over bsp',
  ),
  Finding(
    'Where communication takes most of an iteration, turns (R2SP) halve it, as '
    'far as servers apply pushes in no time.',
    'r2sp_figure7',
    'VGG16: time of an iteration over BSP, r2sp',
  ),
  Finding(
    'With one of four hosts at a quarter of the rate, a step over a packed '
    'forest takes .77 of the time of DDP; on equal links it gains nothing.',
    'existing_systems',
    'one of four hosts at a quarter: time of a step in half precision with '
    'overlap, forest over DDP',
  ),
  Finding(
    'Messages of 16 bits cost no accuracy.',
    'gradientflow_cifar',
    'bfloat16 is within a point: final accuracy minus that of float32',
  ),
  Finding(
    'On text, 32 local steps between exchanges end a fifth worse than BSP in '
    'bits per byte.',
    'local_steps_text',
    'final bits per byte over those of the other, at most 1.05: local 32 and '
    'bsp',
  ),
  Finding(
    'The virtual clock misses iterations on real links by 2 % in the median; '
    'one condition in twenty is off by 13 % or more.',
    'simulator',
    'the virtual clock misses the time of an iteration by at most 0.05: p95 '
    'over all conditions',
  ),
)
