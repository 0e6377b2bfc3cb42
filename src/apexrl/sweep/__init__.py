"""``apexrl sweep``: many runs with different settings, chosen by Optuna, each in a run folder of its own."""
