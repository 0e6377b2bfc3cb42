"""A topology and an agent for apexrl."""
