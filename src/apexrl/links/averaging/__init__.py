"""Averages of gradients over learners that come and go."""
