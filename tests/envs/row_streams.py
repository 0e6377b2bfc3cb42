"""What every environment of a vector answers, to compare vectors that answer in different orders."""

from __future__ import annotations

from typing import Any

import numpy as np

from apexrl.envs import VectorEnv

Row = tuple[Any, ...]


def streams(env: VectorEnv, rows: int) -> list[list[Row]]:
    """The answers of each environment and what it reported of its episodes; its own rows decide its actions."""
    seen = env.reset()
    found: list[list[Row]] = [[tuple(array[n].tolist() for array in seen.values())] for n in range(env.num_envs)]
    which = np.arange(env.num_envs)
    while min(len(stream) for stream in found) <= rows:
        chosen = [(len(found[n]) * (n + 1) + 1) % (env.spec.action.n or 3) for n in which]
        actions = np.array(chosen) if env.spec.action.n else np.full((len(which), *env.spec.action.shape), 0.25)
        env.send(actions.astype(env.spec.action.dtype), None if env.lockstep else which)
        stepped = env.receive()
        assert stepped is not None
        assert (stepped.which is None) == env.lockstep
        which = np.arange(env.num_envs) if stepped.which is None else stepped.which
        games = {episode.env: (episode.episode_return, episode.length) for episode in stepped.episodes}
        for row, number in enumerate(which.tolist()):
            shown = tuple(array[row].tolist() for array in stepped.observation.values())
            results = (stepped.reward, stepped.terminated, stepped.truncated, stepped.starts)
            found[number].append((shown, *(float(array[row]) for array in results), games.get(number)))
    return [stream[: rows + 1] for stream in found]
