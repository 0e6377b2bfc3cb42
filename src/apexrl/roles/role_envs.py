"""The environments of one role, made as the configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apexrl.config import Config
from apexrl.protocols import Context
from apexrl.roles.pool_players import opponents
from apexrl.shared.usable_cores import usable_cores
from apexrl.spec import Array

if TYPE_CHECKING:
    from apexrl.envs import VectorEnv
    from apexrl.envs.players import MakePlayers


def own_cores(config: Config) -> int:
    """Cores of this machine for each of the run's actors, at least 1; all of them where roles take turns."""
    return max(1, usable_cores() // (1 if config.serial else max(1, config.actor.actors)))


def first_reset(context: Context, env: VectorEnv) -> dict[str, Array]:
    """Reset all environments of an actor. A run tells once that they have masks which nobody reads."""
    from apexrl.envs.action_masks import MASK_HINT

    with context.env_call():
        observation = env.reset()
    if env.ignores_mask:
        context.send("log", text=f"{env.name}: {MASK_HINT}", once="masks")
    return observation


def role_envs(
    context: Context,
    config: Config,
    envs: int,
    seed: int,
    cores: int,
    partial: bool = False,
    changing: bool = True,
    players: MakePlayers | None = None,
) -> VectorEnv:
    """``envs`` environments stepped together. With ``--vector auto`` a run tells once that threads were chosen.

    Args:
        cores: that they may use at the same time.
        partial: as in ``envs.make_vector``.
        changing: they take settings that callbacks change (``Context.env_change``).
        players: makes who plays agents that are not learned; None: whom the settings say.
    """
    from apexrl.envs import make_vector

    vector = config.actor.vector
    if vector == "auto" and config.serial:
        vector = "sync"
    with context.env_call():
        changes = context.env_change if changing else None
        players = players or opponents(context, config)
        made = make_vector(config.env, envs, seed, vector, context.env_call, cores, partial, changes, players)
    if made.chosen:
        text = (
            f"{made.name}: {made.chosen}, so the environments of an actor step at the same time, each in a thread; "
            "--vector sync steps them one after the other"
        )
        context.send("log", text=text, once="threads")
    return made
