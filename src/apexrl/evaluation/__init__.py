"""Trained agents: load one, record videos of it."""
