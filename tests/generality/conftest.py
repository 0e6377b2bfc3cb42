"""The suite lies outside the package: ``benchmarks`` is importable from the repository."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# SWIG's types warn when Box2D is imported, and Python crashes where that warning is an error.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import Box2D  # noqa: F401
