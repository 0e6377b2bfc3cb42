"""Running statistics reach whoever acts in every topology, whoever computes and applies gradients there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.launch import launch
from apexrl.run import checkpoint

RANDOM: dict[str, Any] = {"epsilon": 1.0, "updates_per_step": 0.125}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "apex": ("apex", "dueling_dqn", RANDOM),
    "apex, two learners": ("apex", "dqn", RANDOM | {"learners": 2}),
    "gorila, two servers": ("gorila", "dqn", RANDOM | {"learners": 2, "parameter_servers": 2}),
    "r2d2": (
        "apex",
        "r2d2",
        RANDOM | {"sequence_length": 8, "sequence_stride": 4, "burn_in": 2, "recurrent_units": 16},
    ),
    "a3c": ("a3c", "a2c", {}),
    "a3c, two servers": ("a3c", "a2c", {"hogwild": False, "parameter_servers": 2}),
    "ga3c": ("ga3c", "a2c", {}),
    "impala": ("impala", "impala", {}),
    "impala, two learners": ("impala", "ppo", {"learners": 2, "epochs": 2, "minibatches": 2, "popart": True}),
    "seed": ("seed", "impala", {}),
    "sample_factory": ("sample_factory", "appo", {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_statistics_are_of_what_the_actors_saw(name: str, tmp_path: Path) -> None:
    topology, agent, changes = RUNS[name]
    config = override(
        with_agent(Config(topology=topology), agent),
        {
            "normalize_observations": True, "normalize_returns": True, "serial": True, "out": str(tmp_path),
            "name": "run", "env_steps": 800, "hidden": (16,), "unroll_length": 8, "batch_size": 8, "min_size": 64,
            "updates_per_step": 0.0, "actors": 2, "envs_per_actor": 2, "learning_rate": 1e-3, "eval_episodes": 1,
            "eval_period_seconds": 3600.0, "capacity": 1_000, **changes,
        },
    )  # fmt: skip
    launch(config)
    newest = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    found = {key: value for key, value in checkpoint.load(newest).arrays.items() if "normalizer/" in key}
    mean, variance = (found[f"normalizer/online/{part}/observation"] for part in ("mean", "variance"))
    rewards = found["normalizer/online/rewards"]
    # CartPole under a policy that has hardly learned: x and θ stay near 0, the speeds vary most
    assert (np.abs(mean) < 0.5).all()
    assert (mean != 0.0).all()
    assert ((variance[[1, 3]] > 0.05) & (variance[[1, 3]] < 3.0)).all()
    assert (variance[[0, 2]] < 0.2).all()
    assert 0.5 < rewards[0] < 3.0, "1 a step, of at most three steps"
    assert 0.7 < rewards[3] < 1.0, "γ, but at ends"
    assert float(found["normalizer/optimizer/steps"]) > 5
