"""The same programs on a Ray cluster: placement, processes and transfer are Ray's; roles, links and books are ours."""
