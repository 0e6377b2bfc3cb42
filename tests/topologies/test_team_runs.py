"""Teams as one learner's, in whole runs: what VDN and QMIX make of the two-step game, wherever they run."""

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
from apexrl.envs.team_games import CueGame
from apexrl.errors import ConfigError, EnvError
from apexrl.launch import launch
from apexrl.topologies.validation import validate

GAME = "apexrl.envs.team_games:parallel_env"


def run(topology: str, agent: str, out: Path, **changes: Any) -> Config:
    """Actions are uniformly random throughout, as in the paper."""
    return override(
        with_agent(Config(topology=topology), agent),
        {
            "env": GAME, "serial": True, "out": str(out), "name": "run", "hidden": (64,), "actors": 1,
            "envs_per_actor": 8, "epsilon": 1.0, "env_steps": 6_000, "min_size": 200, "capacity": 5_000,
            "batch_size": 32, "updates_per_step": 0.25, "learning_rate": 2e-3, "gradient_clip": 10.0,
            "target_period_updates": 50, "gamma": 0.99, "eval_episodes": 2, "eval_period_seconds": 1e6,
            "learner_threads": 1, "show_state": True, "seed": 1, **changes,
        },
    )  # fmt: skip


@pytest.mark.parametrize(("agent", "best"), [("vdn", 7.0), ("qmix", 8.0)])
@pytest.mark.parametrize("topology", ["apex", pytest.param("seed", marks=pytest.mark.long)])
def test_a_sum_earns_seven_and_a_monotonic_mixture_eight(
    agent: str, best: float, topology: str, tmp_path: Path
) -> None:
    """Rashid et al. 2018, section 5.1 and table 1."""
    config = run(topology, agent, tmp_path, env_steps=3_000, learning_rate=4e-3)
    assert launch(config, [])["last_weights_return"] == best


@pytest.mark.parametrize(("agent", "topology"), [pytest.param("vdn", "seed", marks=pytest.mark.long), ("qmix", "apex")])
def test_with_a_memory_they_know_what_a_cue_said(agent: str, topology: str, tmp_path: Path) -> None:
    """A team that forgets earns 4."""
    own = {"env_kwargs": {"game": "cue"}, "memory": "gru", "recurrent_units": 16, "hidden": (16,), "batch_size": 16}
    own |= {"sequence_length": 2, "sequence_stride": 2, "burn_in": 0, "min_size": 100, "env_steps": 3_000}
    own |= {"updates_per_step": 0.125, "learning_rate": 5e-3, "eval_episodes": 20}
    assert launch(run(topology, agent, tmp_path, **own), [])["last_weights_return"] == 8.0


class Repeats(CueGame):
    """Masks choose the first action, which networks do not see; who repeats it at the second step is paid."""

    def observation_space(self, agent: str) -> gym.Space[Any]:
        mask = gym.spaces.MultiBinary(2)
        return gym.spaces.Dict({"step": gym.spaces.Box(0.0, 1.0, (1,), np.float32), "action_mask": mask})

    def _seen(self) -> dict[str, Any]:
        mask = np.ones(2, np.int8) if self._ends else np.eye(2, dtype=np.int8)[self._place]
        return {agent: {"step": np.float32([self._ends]), "action_mask": mask} for agent in self.possible_agents}


@pytest.mark.parametrize(("agent", "memory"), [("vdn", "none"), pytest.param("qmix", "gru", marks=pytest.mark.long)])
def test_they_know_what_they_did_last(agent: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A team that does not earns 4."""
    monkeypatch.setattr(agent_toys, "parallel_env", Repeats)
    own: dict[str, Any] = {"env": "agent_toys:parallel_env", "show_state": False, "show_last_action": True}
    own |= {"env_steps": 2_000, "updates_per_step": 0.125, "learning_rate": 5e-3, "eval_episodes": 20}
    if memory != "none":
        own |= {"memory": memory, "recurrent_units": 16, "hidden": (16,), "batch_size": 16, "min_size": 100}
        own |= {"sequence_length": 2, "sequence_stride": 2, "burn_in": 0}
    assert launch(run("apex", agent, tmp_path, **own), [])["last_weights_return"] == 8.0


@pytest.mark.parametrize("topology", ["seed", "gorila"])
def test_they_run_wherever_transitions_do(topology: str, tmp_path: Path) -> None:
    small = {"env_steps": 400, "updates_per_step": 0.0, "learners": 1, "n_step": 2, "show_agent": True}
    small |= {"alpha": 0.6, "normalize_observations": topology == "seed", "show_state": False}
    assert launch(run(topology, "qmix", tmp_path, **small), [])["updates"] > 0


def test_any_agent_may_learn_a_team(tmp_path: Path) -> None:
    summary = launch(run("apex", "dqn", tmp_path, team=True, env_steps=2_000, learning_rate=1e-3), [])
    assert summary["last_weights_return"] >= 7.0


def test_what_a_team_has_not_is_refused(tmp_path: Path) -> None:
    for agent in ("vdn", "qmix"):
        with pytest.raises(ConfigError, match=f"agent {agent} .* leave --no-team out, or choose an agent"):
            validate(run("apex", agent, tmp_path, team=False), [])
    config = run("apex", "vdn", tmp_path, learned_agents=("first",))
    with pytest.raises(ConfigError, match="--learned-agents means nothing with --team"):
        validate(config, ["learned_agents"])
    validate(run("apex", "vdn", tmp_path, show_last_action=True), ["show_last_action"])
    with pytest.raises(EnvError, match="take turns"):
        launch(run("apex", "vdn", tmp_path, env="apexrl.envs.board_games:env", show_state=False), [])
    assert agent_toys.parallel_env
