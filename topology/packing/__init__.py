"""Finds forests: the best ones exactly, or good ones soon."""
