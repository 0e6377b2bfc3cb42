"""One replay whose items lie in several processes."""
