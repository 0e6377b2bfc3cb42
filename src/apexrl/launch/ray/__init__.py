"""Runs on a Ray cluster. Placement, processes and transfer are Ray's; roles, links and state are apexrl's."""
