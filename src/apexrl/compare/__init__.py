"""``apexrl compare``: topologies or agents one after another with equal settings, with a table and pictures."""

from __future__ import annotations

from apexrl.compare.outcome import Outcome
from apexrl.compare.plan import Arm, Plan, default_out, plan
from apexrl.compare.report import Report
from apexrl.compare.runner import compare

__all__ = ["Arm", "Outcome", "Plan", "Report", "compare", "default_out", "plan"]
