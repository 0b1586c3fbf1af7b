"""Algorithms on numbers, which know no cluster: flows, programs, trees."""
