"""One policy for agents that have different parts to play learns all of them, in every topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agent_toys
from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch

KINDS, STEPS = 3, 8
VALUES: dict[str, Any] = {"env_steps": 6_000, "min_size": 300, "updates_per_step": 0.25, "batch_size": 32, "n_step": 1}
LADDER: dict[str, Any] = {**VALUES, "epsilon": 0.3, "epsilon_alpha": 0.0, "target_period_updates": 50}
UNROLLS: dict[str, Any] = {"env_steps": 18_000, "unroll_length": 16, "batch_size": 8, "epochs": 4, "minibatches": 4}
CELLS: dict[tuple[str, str], dict[str, Any]] = {
    ("apex", "dueling_dqn"): LADDER,
    ("seed", "dueling_dqn"): LADDER,
    ("apex", "discrete_sac"): VALUES,
    ("seed", "discrete_sac"): VALUES,
    ("impala", "ppo"): UNROLLS,
    ("seed", "ppo"): UNROLLS,
    ("sample_factory", "appo"): UNROLLS,
}


class Parts:
    """All agents see one sign. Each is paid for an action of its own: the sign's number and the agent's."""

    def __init__(self) -> None:
        self.possible_agents = [f"part_{number}" for number in range(KINDS)]
        self.agents: list[str] = []
        self._rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Dict(sign=gym.spaces.Discrete(KINDS))

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(KINDS)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._time = list(self.possible_agents), 0
        return self._draw(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        right = {agent: (self._sign + int(agent[-1])) % KINDS for agent in actions}
        rewards = {agent: float(action == right[agent]) for agent, action in actions.items()}
        self._time += 1
        everyone, never = self.agents, dict.fromkeys(actions, False)
        ends = dict.fromkeys(actions, self._time == STEPS)
        shown = self._draw()
        self.agents = [] if self._time == STEPS else everyone
        return shown, rewards, ends, never, {agent: {} for agent in everyone}

    def close(self) -> None:
        pass

    def _draw(self) -> dict[str, Any]:
        self._sign = int(self._rng.integers(KINDS))
        return {agent: {"sign": self._sign} for agent in self.agents}


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), CELLS)
def test_every_agent_plays_its_part(topology: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not know which agent it acts for earns a third of ``STEPS``."""
    monkeypatch.setattr(agent_toys, "parallel_env", Parts)
    settings = {
        "env": "agent_toys:parallel_env", "show_agent": True, "serial": True, "out": str(tmp_path), "name": "run",
        "hidden": (32,), "actors": 1, "envs_per_actor": 12, "learning_rate": 3e-3, "gamma": 0.0, "eval_episodes": 60,
        "eval_period_seconds": 1e6, "learner_threads": 1, "seed": 1,
    }  # fmt: skip
    made = override(with_agent(Config(topology=topology), agent), {**settings, **CELLS[topology, agent]})
    assert launch(made, [])["final_eval_return"] > 7.0
