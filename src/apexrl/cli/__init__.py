"""The ``apexrl`` command."""
