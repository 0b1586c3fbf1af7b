"""Every benchmark: python -m bench, or `make bench`."""

from bench import checkpoint, runtime, scale, training, zipline

training.main([])
runtime.main([])
zipline.main([])
scale.main([])
checkpoint.main([])
