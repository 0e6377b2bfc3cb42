"""Datasets of episodes: read from Minari's files into a replay, and written as such files."""
