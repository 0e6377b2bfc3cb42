"""Short runs with the learner on a GPU, in processes: each topology that computes there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import apexrl

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
RUNS = (("apex", "dueling_dqn"), ("gorila", "dqn"), ("impala", "appo"), ("ga3c", "a2c"), ("seed", "discrete_sac"),
        ("sample_factory", "ppo"))  # fmt: skip


@CUDA
@pytest.mark.parametrize(("topology", "agent"), RUNS)
def test_a_run_learns_on_a_gpu(topology: str, agent: str, tmp_path: Path) -> None:
    result = apexrl.train(
        env="CartPole-v1",
        topology=topology,
        agent=agent,
        device="cuda",
        env_steps=6_000,
        actors=1,
        eval_episodes=2,
        minutes=2.0,
        out=str(tmp_path),
        show=False,
    )
    assert result.summary["updates"] > 0
    assert result.summary["restarts"] == dict.fromkeys(result.summary["restarts"], 0)
