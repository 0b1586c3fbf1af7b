"""A simulated system: processes of one run in one process, as a seed says.

Threads are real, but one runs at a time; clocks, sockets and ends of processes
are simulated.  What happens is a function of the seed.
"""
