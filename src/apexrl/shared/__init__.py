"""Shared memory of one machine: segments and the weights board. Needs only NumPy."""
