"""Every benchmark: python -m bench, or `make bench`.

Not among them, as they take longer: python -m bench.lab (real runs on shaped
links, needs root), python -m bench.routes (the same by route, needs root),
python -m bench.fitted (runs predicted by one of them, needs root),
python -m bench.lead (many workers), python -m bench.fuzz (nonsense sent to a
run), python -m bench.faults (every fault in every phase, needs root), python -m
bench.allreduce and python -m bench.adapt (sums between hosts, and links that
change; both need root), python -m bench.advice (what is advised, beside all
else in a lab; root), python -m bench.gradientflow (512 virtual GPUs, a
minute), python -m bench.gpu (everything that is to hold on a GPU, ten
minutes) and, or `make soak`, python -m bench.soak (killed
processes).
"""

from bench import (
  batching,
  checkpoint,
  drift,
  forest,
  predict,
  runtime,
  scale,
  training,
  transport,
  zipline,
)

training.main([])
runtime.main([])
zipline.main([])
scale.main([])
checkpoint.main([])
drift.main([])
transport.main([])
predict.main([])
batching.main([])
forest.main([])
