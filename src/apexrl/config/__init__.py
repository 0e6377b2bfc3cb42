"""The configuration of a run."""

from apexrl.config.agent_settings import AgentConfig
from apexrl.config.schema import (
    ActorConfig,
    Config,
    EnvConfig,
    EvaluatorConfig,
    HostsConfig,
    LearnerConfig,
    ReplayConfig,
    StopConfig,
)
from apexrl.config.topology_settings import WiringConfig

__all__ = [
    "ActorConfig",
    "AgentConfig",
    "Config",
    "EnvConfig",
    "EvaluatorConfig",
    "HostsConfig",
    "LearnerConfig",
    "ReplayConfig",
    "StopConfig",
    "WiringConfig",
]
