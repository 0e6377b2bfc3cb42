"""Every shipped agent by name: where it is, what it needs, what its name stands for, whose it is. Loads no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class AgentInfo(NamedTuple):
    """One shipped agent."""

    where: str  # "module:Class"
    description: str
    needs: str  # of the environment
    citation: str
    settings: Mapping[str, Any]  # flat names of `apexrl.config`: what the agent's name stands for


_DISCRETE = "Discrete or MultiDiscrete actions"
_BOX = "bounded Box actions"

# The switches of Q-learning, all off: a name below turns on its own.
_PLAIN: dict[str, Any] = {
    "double": False,
    "dueling": False,
    "noisy": False,
    "munchausen": False,
    "distribution": "expected",
}
# What actor-critic methods of one transition have in common (SB3's and CleanRL's SAC and TD3).
_ACTOR_CRITIC: dict[str, Any] = {
    "n_step": 1,
    "gamma": 0.99,
    "hidden": (256, 256),
    "critic_hidden": (),
    "optimizer": "adam",
    "learning_rate": 3e-4,
    "policy_learning_rate": 0.0,
    "policy_period_updates": 1,
    "gradient_clip": 0.0,
    "huber": 0.0,
    "polyak": 0.005,
    "batch_size": 256,
    "capacity": 1_000_000,
    "alpha": 0.0,
    "min_size": 10_000,
    "samples_per_insert": 256.0,  # one update per environment step
    "random_start": True,
    "residual": 0.0,
    "temperature": 0.0,
    "first_moment_decay": 0.9,
}

AGENTS: dict[str, AgentInfo] = {
    "dqn": AgentInfo(
        "apexrl.agents.dqn:DQN",
        "Q-learning with a target network",
        _DISCRETE,
        "Mnih et al. 2015, Human-level control through deep reinforcement learning, Nature 518",
        _PLAIN,
    ),
    "double_dqn": AgentInfo(
        "apexrl.agents.dqn:DQN",
        "DQN whose online network chooses the next action",
        _DISCRETE,
        "van Hasselt et al. 2016, Deep Reinforcement Learning with Double Q-learning, arXiv 1509.06461",
        _PLAIN | {"double": True},
    ),
    "dueling_dqn": AgentInfo(
        "apexrl.agents.dqn:DQN",
        "double DQN with value and advantage heads; with n-step returns and priorities it is Ape-X DQN",
        _DISCRETE,
        "Wang et al. 2016, Dueling Network Architectures, arXiv 1511.06581; Horgan et al. 2018, arXiv 1803.00933",
        _PLAIN | {"double": True, "dueling": True},
    ),
}
