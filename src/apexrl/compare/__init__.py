"""``apexrl compare``: topologies, or agents, one after another on equal terms; a table and pictures of how they did."""

from __future__ import annotations

from apexrl.compare.outcome import Outcome
from apexrl.compare.plan import Arm, Plan, default_out, plan
from apexrl.compare.runner import Report, compare

__all__ = ["Arm", "Outcome", "Plan", "Report", "compare", "default_out", "plan"]
