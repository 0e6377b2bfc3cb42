"""A replay filled with a dataset: every step of every episode, as an actor would have written it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from apexrl.datasets.episode import Episode
from apexrl.spec import Array, EnvSpec

if TYPE_CHECKING:
    from apexrl.datasets.minari_files import Dataset
    from apexrl.replay import Replay

VERSION = -1
"""Weights version of steps that no actor of the run has made: no policy lag is known of them."""

_CHUNKS = 4  # room beside the items: a replay keeps at most a chunk less than its capacity
_MOST_CHUNK = 1024
_TIMEOUT_SECONDS = 60.0


def filled_replay(dataset: str, spec: EnvSpec, version: str, reward_clip: float, **options: Any) -> Replay:
    """A replay that holds a whole dataset, every item with the same priority.

    What a dataset lacks of the fields, and an agent of the run would have recorded, is zero: a recurrent state is then
    that of an episode's beginning, and priorities are not made of it.

    Args:
        dataset: folder or id.
        spec: of the run's environment.
        version: name of the field for the weights version.
        reward_clip: largest magnitude of a reward; 0 leaves them.
        options: of the replay, but for its capacity.

    Raises:
        DatasetError: the dataset is not there, is of another environment, or cannot be learned from.
        ConfigError: memory is missing.
    """
    from apexrl.datasets.minari_files import Dataset
    from apexrl.replay import Replay

    source = Dataset(dataset)
    source.check_fits(spec)
    stride = options.get("stride") or 1
    items = source.steps if stride == 1 else source.steps // stride + 2 * source.episodes
    replay = Replay(items + _CHUNKS * _MOST_CHUNK, **options, writers=1, streams=1)
    try:
        fill(replay, source, version, reward_clip)
    except BaseException:
        replay.close()
        raise
    return replay


def fill(replay: Replay, episodes: Dataset | list[Episode], version: str = "", reward_clip: float = 0.0) -> None:
    """Append episodes to a replay with all of their fields; arguments as of ``filled_replay``."""
    with replay.writer(streams=1) as writer:
        for episode in episodes:
            rows = episode.steps + 1
            reward = np.clip(episode.reward, -reward_clip, reward_clip) if reward_clip else episode.reward
            steps: dict[str, Array] = {
                **episode.observation,
                "action": _padded(episode.action),
                "reward": _padded(reward),
                "terminated": _padded(episode.terminated),
                "truncated": _padded(episode.truncated),
            }
            for column in replay.core.layout.columns:
                if column.name not in steps:
                    value = VERSION if column.name == version else 0
                    steps[column.name] = np.full((rows, *column.field.shape), value, column.field.dtype)
            for row in range(rows):
                here = {name: values[row : row + 1] for name, values in steps.items()}
                writer.append(here, timeout=_TIMEOUT_SECONDS)


def _padded(values: Array) -> Array:
    """With another row, which is not read: that of the observation behind the last step."""
    padded = np.zeros((len(values) + 1, *values.shape[1:]), values.dtype)
    padded[:-1] = values
    return padded
