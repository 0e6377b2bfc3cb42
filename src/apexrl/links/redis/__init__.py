"""Between hosts, through a Redis server: experience, weights, control. Needs the ``redis`` extra."""
