"""Distributed reinforcement learning: many actors, one learner, and a fast crash-safe prioritized replay.

    import apexrl

    run = apexrl.train("cartpole", actors=4)
    run.summary["final_eval_return"]
    action = apexrl.load(run.path).act(observation)

Importing this brings neither PyTorch nor Gymnasium; names are imported when first used. ``apexrl.replay`` needs NumPy
alone.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apexrl.api import Run, evaluate, load, publish, resume, train
    from apexrl.config import (
        ActorConfig,
        AgentConfig,
        Config,
        EnvConfig,
        EvaluatorConfig,
        LearnerConfig,
        ReplayConfig,
        StopConfig,
    )
    from apexrl.errors import ApexrlError
    from apexrl.evaluation.episodes import Evaluation
    from apexrl.evaluation.loaded_agent import LoadedAgent
    from apexrl.presets import preset
    from apexrl.remote_api import join, join_envs, stand_by
    from apexrl.run.callbacks import Callback
    from apexrl.run.status import PolicyLag, RunStatus, WorkerStatus

__version__ = "0.3.0.dev0"

_HOMES = {
    "ActorConfig": "apexrl.config",
    "AgentConfig": "apexrl.config",
    "ApexrlError": "apexrl.errors",
    "Callback": "apexrl.run.callbacks",
    "Config": "apexrl.config",
    "EnvConfig": "apexrl.config",
    "Evaluation": "apexrl.evaluation.episodes",
    "EvaluatorConfig": "apexrl.config",
    "LearnerConfig": "apexrl.config",
    "LoadedAgent": "apexrl.evaluation.loaded_agent",
    "PolicyLag": "apexrl.run.status",
    "ReplayConfig": "apexrl.config",
    "Run": "apexrl.api",
    "RunStatus": "apexrl.run.status",
    "StopConfig": "apexrl.config",
    "WorkerStatus": "apexrl.run.status",
    "evaluate": "apexrl.api",
    "join": "apexrl.remote_api",
    "join_envs": "apexrl.remote_api",
    "load": "apexrl.api",
    "preset": "apexrl.presets",
    "publish": "apexrl.api",
    "resume": "apexrl.api",
    "stand_by": "apexrl.remote_api",
    "train": "apexrl.api",
}

__all__ = [
    "ActorConfig",
    "AgentConfig",
    "ApexrlError",
    "Callback",
    "Config",
    "EnvConfig",
    "Evaluation",
    "EvaluatorConfig",
    "LearnerConfig",
    "LoadedAgent",
    "PolicyLag",
    "ReplayConfig",
    "Run",
    "RunStatus",
    "StopConfig",
    "WorkerStatus",
    "__version__",
    "evaluate",
    "join",
    "join_envs",
    "load",
    "preset",
    "publish",
    "resume",
    "stand_by",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        here = sys.modules[__name__]
        raise AttributeError(
            f"module 'apexrl' has no attribute {name!r}", name=name, obj=here
        )  # Python names the nearest
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
