"""Reports of a run: live panel, plain lines, curves."""
