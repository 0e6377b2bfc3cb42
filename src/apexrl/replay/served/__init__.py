"""One process samples a replay and serves the batches to several learners of its host."""
