"""Rings, hierarchies, servers and other schemes, as forests to compare with."""
