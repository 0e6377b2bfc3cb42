"""The configuration of a run."""

from apexrl.config.schema import (
    ActorConfig,
    AgentConfig,
    Config,
    EnvConfig,
    EvaluatorConfig,
    HostsConfig,
    LearnerConfig,
    ReplayConfig,
    StopConfig,
    WiringConfig,
)

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
