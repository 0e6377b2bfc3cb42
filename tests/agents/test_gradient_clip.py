"""Of every learning rule: each network's gradient is scaled to the clip, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from signal_runs import Game, asks
from torch import Tensor

MOST = 1e-3
NETWORKS = {
    "dqn": {"q"},
    "qr_dqn": {"q"},
    "iqn": {"q"},
    "rainbow": {"q"},
    "r2d2": {"q"},
    "sac": {"critics", "policy"},
    "discrete_sac": {"critics", "policy"},
    "tqc": {"critics", "policy"},
    "redq": {"critics", "policy"},
    "droq": {"critics", "policy"},
    "simba_v2": {"critics", "policy"},
    "crossq": {"critics", "policy"},
    "ddpg": {"critic", "policy"},
    "bires_ddpg": {"critic", "policy"},
    "td3": {"critic", "policy"},
    "fast_td3": {"critic", "policy"},
    "fast_sac": {"critics", "policy"},
    "d4pg": {"critic", "policy"},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_networks_gradient_is_clipped_by_its_own_norm(name: str) -> None:
    found: list[dict[str, Tensor]] = []
    for clip in (0.0, MOST):
        game = Game(name, "vector", asks(name)[0], gradient_clip=clip, policy_period_updates=1)
        (batch,) = game.batches(1)
        agent: Any = game.agent()
        found.append(
            {group: gradient.clone() for group, gradient in agent.gradients(agent.prepare(batch)).groups.items()}
        )
        game.close()
    free, clipped = found
    free.pop("normalizer", None)  # statistics, and no gradient
    assert free.keys() - {"temperature"} == NETWORKS[name]
    for group, gradient in free.items():
        norm = gradient.norm()
        assert norm > 2 * MOST
        share = MOST / norm if group != "temperature" else 1.0
        torch.testing.assert_close(clipped[group], gradient * share, rtol=1e-4, atol=1e-9)


def test_policy_and_separate_values_are_clipped_each_for_itself() -> None:
    found: list[dict[str, Tensor]] = []
    for clip in (0.0, MOST):
        game = Game("ppo", "vector", "discrete", gradient_clip=clip, separate_values=True)
        (batch,) = game.batches(1)
        agent: Any = game.agent()
        groups = agent.gradients(agent.prepare(batch)).groups
        found.append(agent.networks["policy_value"].parameters.split(groups["policy_value"].clone()))
        game.close()
    free, clipped = found
    for own in (True, False):
        part = [name for name in free if name.startswith("value") is own]
        assert part
        share = MOST / torch.cat([free[name].flatten() for name in part]).norm()
        for name in part:
            torch.testing.assert_close(clipped[name], free[name] * share, rtol=1e-4, atol=1e-9)
