"""What processes share on one machine: memory segments and the weights board. Needs NumPy alone."""
