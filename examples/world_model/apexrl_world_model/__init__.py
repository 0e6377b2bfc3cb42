"""An agent for apexrl that plans in a learned model of its environment."""
