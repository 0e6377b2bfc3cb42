"""Links to a replay that is filled with a dataset before anybody samples it, and to a mix with it."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.datasets.filling import filled_replay
from apexrl.roles.actor import VERSION
from apexrl.topologies.program import MixedLink, Probe, Program, ReplayLink
from apexrl.topologies.replay_links import hindsight, stored_fields, window


def recorded(program: Program, config: Config, probe: Probe, seed: int = 0) -> ReplayLink:
    """A replay of all that ``--dataset`` holds, drawn by priority where ``--alpha`` says so.

    Args:
        seed: added to that of the draws.

    """
    replay = config.replay
    options: dict[str, Any] = {
        **window(probe.item, config.agent),
        **hindsight(config, probe),
        "fields": stored_fields(config, probe),
        "stack": config.env.stack,
        "gamma": config.agent.gamma,
        "seed": config.seed + seed,
        "alpha": replay.alpha,
        "eps": replay.priority_eps,
        "check_memory": replay.check_memory,
    }
    source = {"dataset": replay.dataset, "spec": probe.spec, "version": VERSION, "reward_clip": config.env.reward_clip}
    return program.filled_replay(filled_replay, **source, **options)


def with_dataset(
    program: Program, config: Config, probe: Probe, replay: ReplayLink, seed: int = 0
) -> ReplayLink | MixedLink:
    """What learners draw from: ``replay``, into which actors write, mixed with ``--dataset`` where there is one (RLPD,
    Ball et al. 2023, arXiv 2302.02948)."""
    if not config.replay.dataset:
        return replay
    return MixedLink(replay, recorded(program, config, probe, seed), config.replay.dataset_share)
