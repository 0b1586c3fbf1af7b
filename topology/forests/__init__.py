"""Forests as data: checked, timed, exported, drawn, divided into rounds."""
