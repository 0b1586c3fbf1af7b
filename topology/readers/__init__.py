"""Clusters from files of NVIDIA's tools, NCCL and SLURM, and from matrices."""
