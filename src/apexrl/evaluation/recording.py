"""Datasets that a trained agent makes: episodes that it plays, or the replay that its run has saved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apexrl.agents.acting_noise import LEVELS
from apexrl.config import Config
from apexrl.datasets.episode import LOG_PROB, Episode
from apexrl.datasets.minari_files import write
from apexrl.errors import ConfigError
from apexrl.protocols import State
from apexrl.roles.executed_actions import ExecutedActions, changes_actions, check_actions, described
from apexrl.spec import Array

if TYPE_CHECKING:
    from apexrl.evaluation.loaded_agent import LoadedAgent


def record(loaded: LoadedAgent, config: Config, episodes: int, seed: int, to: Path, name: str = "") -> tuple[int, int]:
    """Play episodes as the evaluator's settings in ``config`` say, and write them as a dataset, rewards unclipped.

    Args:
        to: a new folder.
        name: id of the dataset; empty: made of the environment and the agent.

    Returns:
        How many episodes and steps were written.

    Raises:
        DatasetError: it cannot be written.
        ConfigError: the environment cannot be described by spaces of its own; or settings mean nothing for its actions.
    """
    about = {
        "algorithm_name": config.agent.agent,
        "description": f"Episodes of an agent trained by apexrl; actions: {described(config.evaluator)}",
    }
    return _written(config, to, name, played(loaded, config, episodes, seed), about)


def played(loaded: LoadedAgent, config: Config, episodes: int, seed: int) -> Iterator[Episode]:
    """The episodes of ``record``, in the order in which they end; of each environment as many."""
    from apexrl.envs import FrameStack, make_vector
    from apexrl.roles.env_arrays import zeroed

    settings = config.evaluator
    check_actions(settings, loaded.spec.action)
    greedy = settings.eval_actions == "greedy"
    with closing(make_vector(replace(config.env, reward_clip=0.0), min(episodes, settings.eval_envs), seed)) as env:
        rows, spec = env.num_envs, env.spec
        owed = [episodes // rows + (row < episodes % rows) for row in range(rows)]
        changes = ExecutedActions(settings, spec, rows, seed) if changes_actions(settings) else None
        frames = FrameStack(spec.stack, rows, spec.observation)
        observation = env.reset(seed)
        seen = frames.push(observation)
        state: State = None
        open_ = [_Growing(observation, row) for row in range(rows)]
        exploration = np.zeros(rows, np.float32)
        while any(owed):
            drawn_alone = {name: value for name, value in (state or {}).items() if name != LEVELS}  # see ``_log_prob``
            acted = loaded.agent.act(seen, drawn_alone or None, exploration, greedy=greedy)
            chosen, state = np.asarray(acted.actions), acted.state
            executed = chosen if changes is None else changes.of(chosen, seen)
            told = _log_prob(config, loaded, chosen, executed, acted.extras)
            stepped = env.step(executed)
            seen = frames.push(stepped.observation, stepped.starts)
            if state and stepped.starts.any():
                state = zeroed(state, stepped.starts)
            if changes is not None:
                changes.stepped(executed, stepped.starts, [episode.env for episode in stepped.episodes])
            for row in range(rows):
                if stepped.starts[row]:
                    open_[row] = _Growing(stepped.observation, row)
                    continue
                open_[row].add(stepped, row, executed[row], None if told is None else float(told[row]))
                if (stepped.terminated[row] or stepped.truncated[row]) and owed[row]:
                    owed[row] -= 1
                    yield open_[row].episode(spec.action.dtype)


def saved(path: Path, config: Config, to: Path, name: str = "") -> tuple[int, int]:
    """Write the replay that a run has saved as a dataset: what actors did, in pieces of an episode as long as the
    replay keeps them together; a piece that is not the end of its episode ends as truncated.

    Args:
        path: the run's snapshot of its replay.
        to, name: as for ``record``.

    Raises:
        ConfigError: the replay's items are not single steps, or do not say where episodes terminated.
        DatasetError: it cannot be written.
        SnapshotError: it cannot be read.
    """
    from apexrl.replay import Replay

    with Replay.load(path) as replay:
        options = replay.core.options
        if options["kind"] != "transition":
            raise ConfigError(
                f"{path} holds {options['kind']}s: a dataset is made of single steps. Make one of episodes: apexrl "
                "dataset record"
            )
        needed = {
            "--n-step 1": ("transitions of {:g} steps", options["n_step"], 1),
            "--reward-clip 0": ("rewards clipped to {:g}", config.env.reward_clip, 0),
        }
        if wrong := {flag: text.format(value) for flag, (text, value, right) in needed.items() if value != right}:
            raise ConfigError(
                f"{path} holds {' and '.join(wrong.values())}: a dataset is made of single steps and whole rewards. "
                f"Train with {' '.join(wrong)}, or make one of episodes: apexrl dataset record"
            )
        if options["gamma"] == 0:
            raise ConfigError(
                f"{path} has discounts of 0 alone, as --gamma is 0: it does not say where episodes terminated. Train "
                "with --gamma above 0, or make a dataset of episodes: apexrl dataset record"
            )
        about = {"algorithm_name": config.agent.agent, "description": "The replay of a run of apexrl"}
        return _written(config, to, name, pieces(replay), about)


def pieces(replay: Any) -> Iterator[Episode]:
    """Of a replay of single steps: its episodes, as far as they go on in it. One is cut where no step follows."""
    waiting: dict[bytes, list[dict[str, Array]]] = {}  # what is seen next -> a piece that a chunk's last step is of
    rows: list[dict[str, Array]] = []
    following, before = b"", 0  # what is seen next, and the key, of the last step
    last = replay.stats()["chunk"] - 1  # place in a chunk
    places = 1 << max(1, last.bit_length())  # a step's key modulo this is its place
    for batch in replay.in_order():
        newest = {key: value[:, -1] if _stacked(replay, key) else value for key, value in batch.data.items()}
        shown = [key for key in newest if f"next_{key}" in newest]
        for at, key in enumerate(batch.keys.tolist()):
            row = {name: np.array(value[at]) for name, value in newest.items()}
            seen, begins_chunk = _bytes([row[name] for name in shown]), key % places == 0
            if rows and (begins_chunk or key != before + 1 or seen != following):
                if before % places == last:
                    rows, waiting[following] = waiting.pop(following, []), rows
                if rows:
                    yield _piece(rows)
                rows = []
            if begins_chunk:
                rows = waiting.pop(seen, [])
            rows.append(row)
            following, before = _bytes([row[f"next_{name}"] for name in shown]), key
            if row["discount"] == 0:
                yield _piece(rows)
                rows = []
    yield from map(_piece, filter(None, (*waiting.values(), rows)))


def _bytes(values: Sequence[Array]) -> bytes:
    return b"".join(value.tobytes() for value in values)


def _stacked(replay: Any, name: str) -> bool:
    plain = name.removeprefix("next_")
    return any(column.name == plain and column.windowed and column.stack > 1 for column in replay.core.layout.columns)


def _piece(rows: list[dict[str, Array]]) -> Episode:
    shown = [key for key in rows[0] if f"next_{key}" in rows[0]]
    ended = np.array([row["discount"] == 0 for row in rows])
    return Episode(
        {key: np.stack([*(row[key] for row in rows), rows[-1][f"next_{key}"]]) for key in shown},
        np.stack([row["action"] for row in rows]),
        np.array([row["reward"] for row in rows], np.float32),
        ended,
        np.array([False] * (len(rows) - 1) + [not ended[-1]]),
    )


class _Growing:
    """An episode under way."""

    def __init__(self, observation: dict[str, Array], row: int) -> None:
        self._seen = [{name: np.array(values[row]) for name, values in observation.items()}]
        self._steps: list[tuple[Any, float, bool, bool, float | None]] = []

    def add(self, stepped: Any, row: int, action: Any, log_prob: float | None) -> None:
        self._seen.append({name: np.array(values[row]) for name, values in stepped.observation.items()})
        ends = bool(stepped.terminated[row]), bool(stepped.truncated[row])
        self._steps.append((np.array(action), float(stepped.reward[row]), *ends, log_prob))

    def episode(self, dtype: str) -> Episode:
        action, reward, terminated, truncated, log_prob = zip(*self._steps, strict=True)
        return Episode(
            {name: np.stack([seen[name] for seen in self._seen]) for name in self._seen[0]},
            np.stack(action).astype(dtype, copy=False),
            np.array(reward, np.float32),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            None if log_prob[0] is None else np.array(log_prob, np.float64),
        )


def _log_prob(config: Config, loaded: LoadedAgent, chosen: Array, executed: Array, extras: Any) -> NDArray[Any] | None:
    """log b(a|s) [B] of executed actions; None: not known.

    An episode's probability is the product of its actions' only where no action depends on the noise of those before.
    """
    settings, action = config.evaluator, loaded.spec.action
    if settings.eval_sticky or settings.eval_noops or loaded.spec.masked:
        return None
    if settings.eval_actions == "sampled":
        return None if settings.eval_epsilon else extras.get(LOG_PROB)
    if action.box or action.hybrid:
        return None
    same = (chosen == executed).reshape(len(chosen), -1).all(axis=1)
    epsilon, count = settings.eval_epsilon, math.prod(action.nvec or (action.n,))
    with np.errstate(divide="ignore"):
        found: NDArray[Any] = np.log(epsilon / count + (1.0 - epsilon) * same)
    return found


def _written(
    config: Config, to: Path, name: str, episodes: Iterator[Episode], about: dict[str, Any]
) -> tuple[int, int]:
    from apexrl.envs import make_env
    from apexrl.envs.spaces import length_limit

    env = make_env(config.env)
    try:
        spaces, spec = (env.observation_space, env.action_space), env.spec
    finally:
        env.close()
    try:
        told = "" if spec is None else spec.to_json()
    except (TypeError, ValueError):  # made by a callable, or of arguments that are no JSON
        told = ""
    plain = str(config.env.env).rpartition(":")[2].rpartition("-v")[0] or "env"
    made = name or f"{plain.replace('/', '-')}/{config.agent.agent}-v0".lower()
    return write(to, made, episodes, *spaces, told, about, length_limit(config.env))
