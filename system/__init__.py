"""The host of a run: clocks, threads, sockets, processes.

Packages above call these four modules by attribute (`clock.monotonic()`,
`threads.Lock()`), so that `system.simulated` can put its own in their place.
"""
