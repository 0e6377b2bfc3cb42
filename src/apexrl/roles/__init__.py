"""The roles: one loop each, cut into steps. Topologies connect them; launchers run them.

PyTorch and Gymnasium are imported when a role is made, so that a supervisor can name roles without loading either.
"""

from __future__ import annotations

from apexrl.roles.a3c_worker import A3CWorker
from apexrl.roles.actor import Actor
from apexrl.roles.env_worker import EnvWorker
from apexrl.roles.evaluator import Evaluator
from apexrl.roles.gateway import WorkerGateway
from apexrl.roles.gradient_learner import GradientLearner
from apexrl.roles.inference_server import InferenceServer
from apexrl.roles.intake import Intake
from apexrl.roles.learner import Learner
from apexrl.roles.model_server import ModelServer
from apexrl.roles.parameter_keeper import ParameterKeeper
from apexrl.roles.parameter_server import ParameterServer
from apexrl.roles.policy_worker import PolicyWorker
from apexrl.roles.pool_keeper import PoolKeeper
from apexrl.roles.relay import Relay
from apexrl.roles.replay_server import ReplayServer
from apexrl.roles.rollout_worker import RolloutWorker
from apexrl.roles.uplink import Uplink

__all__ = [
    "A3CWorker",
    "Actor",
    "EnvWorker",
    "Evaluator",
    "GradientLearner",
    "InferenceServer",
    "Intake",
    "Learner",
    "ModelServer",
    "ParameterKeeper",
    "ParameterServer",
    "PolicyWorker",
    "PoolKeeper",
    "Relay",
    "ReplayServer",
    "RolloutWorker",
    "Uplink",
    "WorkerGateway",
]
