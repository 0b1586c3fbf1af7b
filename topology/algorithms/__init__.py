"""Algorithms on integer graphs and matrices: flows, linear programs, trees."""
