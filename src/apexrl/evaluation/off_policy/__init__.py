"""What a dataset says of an agent that did not make it."""
