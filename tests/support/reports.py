"""Messages that several tests send as they are."""

from cluster.network import messages

PUSH = messages.PushReport(
  iteration=0,
  pulled_at=0.0,
  computed_at=0.0,
  compute_s=0.1,
  factors=[],
  loss=None,
  weight=8.0,
  is_finite=True,
  computed=8,
  compilations=0,
  has_recalled=False,
)
