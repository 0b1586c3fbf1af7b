"""Clusters: workers, switches and links, and where they come from."""
