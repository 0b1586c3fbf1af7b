"""Every benchmark: python -m bench, or `make bench`."""

from bench import runtime, training, zipline

training.main([])
runtime.main([])
zipline.main([])
