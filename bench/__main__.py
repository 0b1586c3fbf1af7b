"""Runs every benchmark that needs neither root nor long: `make bench`.

Not among them: the benchmarks of real hosts, which need root for network
namespaces (`bench.lab`, `bench.empty`, `bench.joining`), and `bench.lead`,
`bench.fuzz` and `bench.gpu`, which take minutes.  docs/benchmarks.md has their
commands.
"""

from bench import (
  batching,
  forest,
  handover,
  loopback,
  overhead,
  predict,
  transport,
  zipline,
)

overhead.print_runtime()
zipline.main([])
overhead.print_scale()
handover.main([])
transport.main([])
loopback.main([])
predict.main([])
batching.main([])
forest.main([])
