"""A replay whose items are spread over several processes."""
