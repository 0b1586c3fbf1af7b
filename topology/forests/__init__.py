"""Forests as data: checked, timed, exported and drawn."""
