"""Links between hosts over a Redis server: experience, weights, control. Needs the ``redis`` extra."""
