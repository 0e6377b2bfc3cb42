"""Datasets in Minari's own files (HDF5 or Arrow), read episode by episode and written. Needs the extra ``minari``.

Nothing is downloaded, and no environment that a file names is made.
"""

from __future__ import annotations

import json
import os
import shutil
import string
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np

from apexrl.config.paths import expanded
from apexrl.datasets.episode import LOG_PROB, Episode, checked
from apexrl.envs.spaces import LIMIT, Leaf, env_spec, flatten_observation, observation_leaves, sample_of
from apexrl.errors import ApexrlError, DatasetError, SpecError
from apexrl.run.atomic_files import replace_text
from apexrl.space_values import LengthLimit
from apexrl.spec import LENGTH, ActionSpec, Array, EnvSpec

_METADATA = "metadata.json"


class Dataset:
    """A Minari dataset on this machine.

    Args:
        where: its folder, or its id (``NAMESPACE/NAME-v0``) among those that Minari has on this machine.

    Raises:
        DatasetError: it is not there, cannot be read, holds no episode, or has spaces that apexrl does not support.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._folder = folder_of(where)
        about = _metadata(self._folder)
        if missing := [name for name in ("observation_space", "action_space", "data_format") if name not in about]:
            raise DatasetError(f"{self._folder / _METADATA} has no {missing[0]}: write the dataset with Minari 0.5")
        storage = _minari().storage
        try:
            self._storage = storage.read(self._folder)
        except Exception as error:
            raise DatasetError(f"dataset {where} cannot be read: {error or type(error).__name__}") from error
        self._leaves = observation_leaves(self._storage.observation_space)
        actions = _as_written(self._storage.action_space, json.loads(about["action_space"]))
        self.spec: EnvSpec = env_spec(self._storage.observation_space, actions)
        _check_kinds(self._leaves, f"dataset {where}")
        self.episodes = int(about.get("total_episodes", 0))
        self.steps = int(about.get("total_steps", 0))
        self.metadata: Mapping[str, Any] = about
        if not (self.episodes and self.steps):
            raise DatasetError(f"dataset {where} is empty: it has {self.episodes} episodes and {self.steps} steps")

    @property
    def env(self) -> str:
        """Id of the environment of which it is, as the file says; empty: it does not say."""
        text = self.metadata.get("env_spec")
        try:
            return str(json.loads(text)["id"]) if isinstance(text, str) else ""
        except (ValueError, KeyError, TypeError):
            return ""

    def check_fits(self, spec: EnvSpec) -> None:
        """Refuse an environment that shows or takes something else.

        Raises:
            DatasetError: with what both have.
        """
        own, other = described(self.spec), described(spec)
        if own != other:
            of = f" of {self.env}" if self.env else ""
            raise DatasetError(
                f"dataset {self.where}{of} does not fit the environment: it has {own}, and the environment {other}. "
                "Choose the --env of the dataset, wrapped alike (--image-size, --atari)"
            )

    def __iter__(self) -> Iterator[Episode]:
        """Every episode, in order.

        Raises:
            DatasetError: one cannot be read or learned from; the message names it.
        """
        for number in range(self.episodes):
            where = f"dataset {self.where}, episode {number}"
            try:
                (found,) = self._storage.get_episodes([number])
                episode = self._episode(found)
            except SpecError as error:
                raise DatasetError(f"{where} has {error}") from error
            except ApexrlError:
                raise
            except Exception as error:
                raise DatasetError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
            yield checked(episode, self.spec, where)

    def _episode(self, found: Mapping[str, Any]) -> Episode:
        log_prob = (found.get("infos") or {}).get(LOG_PROB)
        return Episode(
            flatten_observation(self._leaves, found["observations"]),
            _stored_actions(found["actions"], self.spec.action),
            np.asarray(found["rewards"], np.float32),
            np.asarray(found["terminations"], np.bool_),
            np.asarray(found["truncations"], np.bool_),
            None if log_prob is None else np.asarray(log_prob, np.float64)[-len(found["rewards"]) :],
        )


def _as_written(space: gym.Space[Any], told: Mapping[str, Any]) -> gym.Space[Any]:
    """``space`` with keys in the order of the file's description ``told``, which is the environment's and so that of
    columns. Minari reads them sorted."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict(
            OrderedDict((key, _as_written(space[key], inner)) for key, inner in told["subspaces"].items())
        )
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple(map(_as_written, space.spaces, told["subspaces"]))
    return space


def _stored_actions(actions: Any, spec: ActionSpec) -> Array:
    """Actions as a dataset has them, [T, ...] or a tuple or dict of such, as they are stored: [T] or [T, *shape].

    Raises:
        SpecError: choices that are no whole numbers.
    """
    stored: Any
    if not spec.parts:
        stored = np.asarray(actions)
        stored = stored if spec.box else _whole(stored) - np.array(spec.starts or spec.start, np.int64)
        return cast("Array", stored.astype(spec.dtype, copy=False))
    columns = []
    for part in sorted(spec.parts, key=lambda part: not part.choices):
        value = actions
        for key in part.path:
            value = value[key]
        flat = np.asarray(value).reshape(len(value), -1)
        columns.append(_whole(flat) if part.choices else flat)
    stored = np.concatenate(columns, axis=1)
    stored[:, : len(spec.starts)] -= np.array(spec.starts, stored.dtype)
    return cast("Array", stored.astype(spec.dtype, copy=False))


def _whole(actions: Array) -> Array:
    """Choices as int64.

    Raises:
        SpecError: they are no whole numbers.
    """
    with np.errstate(invalid="ignore"):  # of NaN
        whole = actions.astype(np.int64)
    if (whole != actions).any():
        step = int(np.argwhere(whole != actions)[0][0])
        raise SpecError(f"action {actions[step]} of step {step}, which is no whole number, and actions are choices")
    return whole


def folder_of(where: str) -> Path:
    """The folder with the files of a dataset, ``where`` being a path or an id.

    Raises:
        DatasetError: there is none.
    """
    path = expanded(where)
    for folder in (path / "data", path):
        if (folder / _METADATA).is_file():
            return folder
    if path.exists():
        raise DatasetError(f"{where} is no Minari dataset: it has no data/{_METADATA}")
    if path.is_absolute() or where.startswith((".", "~")):
        raise DatasetError(f"there is no dataset at {where}")
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    folder = root / where / "data"
    if (folder / _METADATA).is_file():
        return folder
    raise DatasetError(
        f"there is no dataset {where}, neither as a folder nor in {root}: give a folder, or bring it with: "
        f"minari download {where}"
    )


def write(
    folder: Path,
    dataset_id: str,
    episodes: Iterable[Episode],
    observation_space: Any,
    action_space: Any,
    env: str = "",
    about: Mapping[str, Any] | None = None,
    limit: LengthLimit = LIMIT,
) -> tuple[int, int]:
    """Write a dataset in Minari's HDF5 form, images without loss. A folder appears under its name when it is whole.

    Args:
        folder: a new one.
        dataset_id: ``NAMESPACE/NAME-v0``.
        episodes: of these spaces, observations under the names of their ``EnvSpec``.
        env: the environment's specification, as Gymnasium writes it (``EnvSpec.to_json``); empty: left out.
        about: more metadata: author, description …
        limit: of texts whose space has no greatest length.

    Returns:
        How many episodes and steps were written.

    Raises:
        DatasetError: the folder is there already, cannot be written, or there is no episode.
    """
    folder = Path(folder).absolute()  # Minari doubles a relative path
    if folder.exists():
        raise DatasetError(f"{folder} is there already: say another folder, or remove it")
    minari = _minari()
    observation_space = _storable(observation_space, limit)
    leaves, spec = observation_leaves(observation_space), env_spec(observation_space, action_space)
    _check_kinds(leaves, f"dataset {folder}")
    if any("/" in str(key) for part in spec.action.parts for key in part.path):
        raise DatasetError(f"dataset {folder}: keys of actions must be without '/': {action_space}")
    half = folder.with_name(f".{folder.name}.part-{os.getpid()}")
    try:
        half.mkdir(parents=True)
        storage = minari.storage.new(half / "data", observation_space, action_space, jpeg_encoding=False)
        fine = (checked(episode, spec, f"episode {number} of {folder}") for number, episode in enumerate(episodes))
        storage.update_episodes(_buffer(minari, one, leaves, observation_space, action_space, spec) for one in fine)
        text = json.loads((half / "data" / _METADATA).read_text())
        written, steps = text["total_episodes"], text["total_steps"]
        if not written:
            raise DatasetError(f"{folder} was not written: there is no whole episode")
        text |= {"dataset_id": dataset_id, "minari_version": minari.version, **(about or {})}
        text |= {"env_spec": env} if env else {}
        replace_text(half / "data" / _METADATA, json.dumps(text))
        half.rename(folder)
    except OSError as error:
        raise DatasetError(f"the dataset {folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return written, steps


def _storable(space: gym.Space[Any], limit: LengthLimit) -> gym.Space[Any]:
    """``space`` as Minari's files have it, with fields of the same names: HDF5 makes groups of a key ``a/b``, so that
    it becomes ``b`` of a Dict ``a``; and a text of one's own is a ``Text``."""
    if isinstance(space, gym.spaces.Dict):
        spaces: dict[str, gym.Space[Any]] = {}
        below: dict[str, dict[str, gym.Space[Any]]] = {}
        for key, inner in space.spaces.items():
            group, slash, rest = key.partition("/")
            if slash:
                below.setdefault(group, {})[rest] = inner
            else:
                spaces[key] = _storable(inner, limit)
        if both := below.keys() & spaces.keys():
            raise DatasetError(f"the key {both.pop()!r} of {space} begins another key, before '/': rename one of them")
        return gym.spaces.Dict(spaces | {key: _storable(gym.spaces.Dict(of), limit) for key, of in below.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_storable(inner, limit) for inner in space.spaces])
    if type(space).__module__.startswith("gymnasium.") or not isinstance(sample_of(space), str):
        return space
    return gym.spaces.Text(limit.length, min_length=0, charset=string.printable)


def _buffer(
    minari: _Minari, episode: Episode, leaves: Sequence[Leaf], observation_space: Any, action_space: Any, spec: EnvSpec
) -> Any:
    """An episode as Minari takes it: observations nested as the space is, everything in the spaces' own types."""
    by_path = {leaf.path: _values(episode, leaf) for leaf in leaves}

    def nested(space: Any, path: tuple[str | int, ...] = ()) -> Any:
        inner = getattr(space, "spaces", None)
        if isinstance(inner, Mapping):
            return {key: nested(one, (*path, key)) for key, one in inner.items()}
        if inner is not None:
            return tuple(nested(one, (*path, place)) for place, one in enumerate(inner))
        return by_path[path] if isinstance(space, gym.spaces.Text) else by_path[path].astype(space.dtype, copy=False)

    actions = spec.action.in_form(spec.action.as_counted(episode.action))
    return minari.buffer(
        observations=nested(observation_space),
        actions=actions if spec.action.parts else actions.astype(action_space.dtype, copy=False),
        rewards=episode.reward,
        terminations=episode.terminated,
        truncations=episode.truncated,
        infos=None if episode.log_prob is None else {LOG_PROB: episode.log_prob},
    )


def _values(episode: Episode, leaf: Leaf) -> Any:
    """An entry of all observations as the space has it: texts as strings."""
    stored = episode.observation[leaf.name]
    if leaf.padded is None:
        return stored + leaf.start if leaf.start else stored
    lengths = episode.observation[leaf.name + LENGTH]
    return [row[:length].tobytes().decode() for row, length in zip(stored, lengths, strict=True)]


def _check_kinds(leaves: Sequence[Leaf], what: str) -> None:
    """Raises DatasetError: a sequence or a graph, of which Minari has no space."""
    if padded := [leaf.padded for leaf in leaves if leaf.padded and leaf.padded.kind != "text"]:
        raise DatasetError(f"{what}: {padded[0].of} is a {padded[0].kind}, which Minari's files do not hold")


def _metadata(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{folder / _METADATA} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DatasetError(f"{folder / _METADATA} is no dataset's: it holds no JSON object")
    return found


class _Minari(NamedTuple):
    """What is used of the library."""

    storage: Any  # its class of files
    buffer: Any  # its class of episodes that are written
    version: str


def _minari() -> _Minari:
    """Raises DatasetError: the library is not installed."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ModuleNotFoundError as error:
        raise DatasetError("datasets need Minari; run: pip install 'apexrl[train,minari]'") from error
    return _Minari(MinariStorage, EpisodeBuffer, str(minari.__version__))


def described(spec: EnvSpec) -> str:
    """What an environment shows and takes, in words; equal for two exactly if experience of one fits the other."""
    seen = ", ".join(
        f"{name} {field.dtype} {list(field.shape)}"
        + (f" of {spec.categories[name]}" if name in spec.categories else "")
        for name, field in sorted(spec.observation.items())
    )
    action = spec.action
    taken = ["×".join(map(str, action.choices))] if action.choices else []
    taken += ["/".join(map(str, part.path)) for part in action.parts]  # columns are in their order
    if action.low is not None:
        bounds = [
            np.round(np.asarray(one, np.float64), 4).reshape(-1)[:8].tolist() for one in (action.low, action.high)
        ]
        taken.append(f"{list(np.shape(action.low))} from {bounds[0]} to {bounds[1]}")
    return f"{seen}; actions {', '.join(taken)}"
