"""A replay that one process samples for several learners."""
