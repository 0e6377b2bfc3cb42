"""Roles: one loop each, cut into steps. What connects them is the topologies' business, where they run the launcher's.

PyTorch and Gymnasium are imported when a role is made, so that a supervisor can name roles without loading either.
"""

from __future__ import annotations

from apexrl.roles.actor import Actor
from apexrl.roles.evaluator import Evaluator
from apexrl.roles.intake import Intake
from apexrl.roles.learner import Learner
from apexrl.roles.replay_server import ReplayServer
from apexrl.roles.uplink import Uplink

__all__ = ["Actor", "Evaluator", "Intake", "Learner", "ReplayServer", "Uplink"]
