"""Whole runs of agents with a memory, on tasks of which they know 0 (TMaze) or 3 (Recall) without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apexrl

TASKS = "apexrl.envs.memory_tasks"
SMALL: dict[str, Any] = {"recurrent_units": 32, "hidden": (32,), "learning_rate": 3e-3, "actors": 1}
TRANSFORMER: dict[str, Any] = {"memory": "transformer", "memory_heads": 2, "memory_context": 8}
MAZE: dict[str, Any] = {"env": f"{TASKS}:TMaze-v0", "env_kwargs": {"length": 3}}
AGENTS: dict[str, dict[str, Any]] = {
    "ppo": MAZE
    | {"unroll_length": 16, "batch_size": 16, "minibatches": 4, "epochs": 4, "envs_per_actor": 16, "pink_noise": False},
    "dueling_dqn": MAZE
    | {"sequence_length": 8, "sequence_stride": 4, "burn_in": 2, "updates_per_step": 0.15, "target_period_updates": 100}
    | {"epsilon_alpha": 3.0, "envs_per_actor": 8, "min_size": 50, "learning_rate": 2e-3},
    "sac": {"env": f"{TASKS}:Recall-v0", "sequence_length": 5, "sequence_stride": 5, "burn_in": 0, "batch_size": 32}
    | {"updates_per_step": 0.3, "envs_per_actor": 4, "min_size": 50, "pink_noise": False, "initial_temperature": 0.05},
}
AGENTS["crossq"] = AGENTS["sac"] | {"critic_hidden": (64,), "updates_per_step": 0.6, "policy_period_updates": 1}
AGENTS["td3"] = {key: value for key, value in AGENTS["sac"].items() if key != "initial_temperature"}
AGENTS["discrete_sac"] = {
    key: value for key, value in AGENTS["dueling_dqn"].items() if key not in ("epsilon_alpha", "target_period_updates")
}


@pytest.mark.parametrize(
    ("agent", "topology", "memory", "env_steps", "bar"),
    [
        ("ppo", "impala", {"memory": "gru"}, 20_000, 0.9),
        ("ppo", "seed", {"memory": "lstm"}, 20_000, 0.9),
        ("ppo", "sample_factory", TRANSFORMER, 20_000, 0.9),
        ("ppo", "ga3c", {"memory": "gru"}, 20_000, 0.9),
        ("dueling_dqn", "apex", TRANSFORMER, 8_000, 0.9),
        ("dueling_dqn", "seed", {"memory": "gru"}, 8_000, 0.9),
        ("discrete_sac", "apex", {"memory": "gru"}, 8_000, 0.8),
        ("discrete_sac", "seed", {"memory": "gru"}, 8_000, 0.8),
        ("sac", "apex", TRANSFORMER, 3_000, 4.2),
        ("sac", "seed", {"memory": "gru"}, 3_000, 4.5),
        ("td3", "apex", {"memory": "gru"}, 3_000, 4.5),
        ("td3", "seed", {"memory": "gru"}, 3_000, 4.5),
        ("crossq", "apex", {"memory": "gru"}, 4_000, 4.2),
        ("crossq", "seed", {"memory": "gru"}, 4_000, 4.2),
    ],
)
@pytest.mark.long
def test_a_memory_learns_what_nobody_knows_without(
    agent: str, topology: str, memory: dict[str, Any], env_steps: int, bar: float, tmp_path: Path
) -> None:
    settings = SMALL | AGENTS[agent] | memory | {"env_steps": env_steps, "eval_period_seconds": env_steps / 8}
    run = apexrl.train(
        agent=agent, topology=topology, serial=True, seed=1, show=False, out=str(tmp_path), eval_episodes=20, **settings
    )
    assert run.summary["best_eval_return"] > bar


def test_a_trained_agent_remembers_from_call_to_call_until_it_is_reset(tmp_path: Path) -> None:
    settings = (
        SMALL
        | AGENTS["sac"]
        | {"memory": "gru", "env_steps": 300, "min_size": 10, "eval_episodes": 1, "eval_period_seconds": 1e3}
    )
    run = apexrl.train(agent="sac", topology="seed", serial=True, seed=1, show=False, out=str(tmp_path), **settings)
    assert run.summary["updates"] > 2
    seen = np.array([0.3, 0.0], np.float32)
    first, second = run.agent.act(seen), run.agent.act(seen)
    assert second != first
    run.agent.reset()
    assert run.agent.act(seen) == first
