"""What an agent's defaults are with a memory (``--memory``): batches and replays then count sequences, not steps."""

from __future__ import annotations

from typing import Any

from apexrl.agents.catalogue import AGENTS
from apexrl.agents.default_scaling import Settings

SEQUENCE: Settings = {"sequence_length": 20, "sequence_stride": 10, "burn_in": 10}  # RLlib's stateless CartPole; r2d2's
BATCH = 16  # sequences: 320 trained steps
_UNITS, _IMAGE_UNITS = 128, 256  # as of r2d2; Ni et al. 2022 have 128 as well
_STEP_SIZE, _BOX_STEP_SIZE = 5e-4, 3e-4  # at most: RLlib's R2D2, and Ni et al. 2022


def with_memory(agent: str, settings: Settings, images: bool) -> Settings:
    """``settings`` of shipped ``agent`` for networks with a memory: every step is learned from as often as before.

    Args:
        settings: its defaults without.
        images: whether images are seen.
    """
    info, before = AGENTS[agent], dict(settings)
    found: dict[str, Any] = {"recurrent_units": _IMAGE_UNITS if images else _UNITS}
    if info.item == "unroll":
        return before | found | _whole_unrolls(before, images)
    stride = SEQUENCE["sequence_stride"]
    steps = BATCH * SEQUENCE["sequence_length"]
    found |= SEQUENCE | {
        "batch_size": BATCH,
        "updates_per_step": before["updates_per_step"] * before["batch_size"] / steps,
        "capacity": before["capacity"] // stride,
        "min_size": max(1, before["min_size"] // stride),
        "learning_rate": min(before["learning_rate"], _BOX_STEP_SIZE if "Box" in info.needs else _STEP_SIZE),
    }
    if info.settings.get("anneal_horizon"):  # of transitions alone
        found["anneal_horizon"] = False
    return before | found


def _whole_unrolls(before: Settings, images: bool) -> Settings:
    """Minibatches of at least 4 whole unrolls. Of vectors the unrolls are shorter and more, so that there are as many
    minibatches as without a memory: with 4 of them instead of 16, PPO had learned nothing of HalfCheetah without
    velocities after 200,000 steps."""
    minibatches, unrolls = before.get("minibatches", 1), before["batch_size"]
    times = 1 if images else max(1, minibatches * 4 // unrolls)
    return {
        "unroll_length": before["unroll_length"] // times,
        "batch_size": unrolls * times,
        "minibatches": min(minibatches, unrolls * times // 4),
    }
