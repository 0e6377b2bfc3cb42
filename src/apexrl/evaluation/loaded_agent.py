"""A trained agent that maps the environment's observations to its actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from apexrl.agents.network_size import least_nbytes
from apexrl.config import Config, WiringConfig
from apexrl.config.paths import expanded
from apexrl.config.trust import entrusted
from apexrl.errors import ConfigError, SnapshotError, SpecError
from apexrl.image_shapes import shrunk_shape
from apexrl.run import checkpoint as checkpoints
from apexrl.run.folder import RunFolder
from apexrl.space_values import named_values, refuse_no_action, value_names, varying_rows
from apexrl.spec import ACTION_MASK, OBSERVATION, Array, EnvSpec, Field, past_missing

if TYPE_CHECKING:
    from apexrl.envs import FrameStack
    from apexrl.protocols import Agent, State


MASK_KEY = ACTION_MASK.removeprefix(f"{OBSERVATION}/")
_LARGE = 1 << 30  # bytes; smaller networks are not checked beforehand


class LoadedAgent:
    """Acts greedily with the weights of a run.

    It keeps stacked frames and recurrent state between calls of ``act``; call ``reset`` when an episode begins.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, checkpoint: Path | None = None, image_size: int = 0) -> None:
        self.agent = agent
        """The agent itself (``apexrl.protocols.Agent``), for batches of named arrays."""
        self.spec: EnvSpec = getattr(agent, "acting_spec", spec)
        """What it acts by; what only its value sees is not in it."""
        self._whole = spec
        self._image_size = image_size  # to which the environment's images were shrunk in training
        self.checkpoint = checkpoint
        """The file that the weights came from."""
        self._frames: FrameStack | None = None
        self._state: State = None
        self._count = 0

    def reset(self) -> None:
        """Forget frames and states, at the start of an episode."""
        self._frames, self._state, self._count = None, None, 0

    def act(self, observation: Any, action_mask: Any = None) -> Any:
        """The action for one observation, or the actions for a batch of them.

        Args:
            observation: as the environment returns it: an array of the observation space's shape, or a (nested)
                dict or tuple of them; with a leading axis B for B environments stepped together. Where it has texts,
                sequences or graphs it is one observation. Where the run has an ``image_size``, larger images
                are shrunk as in training.
            action_mask: of an agent that was trained with masks: which actions are possible, bool or integers
                ``[n]``, or ``[B, n]``, where they are no entry of the observation.

        Returns:
            For one observation an ``int`` (Discrete) or an array (others), or a tuple or dict of them; for a batch
            arrays ``[B, ...]``.

        Raises:
            SpecError: an entry is missing, a shape is neither that of one observation nor of a batch, values are not
                those of its dtype, or a mask leaves no action.
        """
        if action_mask is not None:
            observation = self._with_mask(observation, action_mask)
        arrays, batched = self._named(observation)
        refuse_no_action(self.spec, arrays)
        count = len(next(iter(arrays.values())))
        if count != self._count:
            self.reset()
            self._count = count
        actions, _, self._state = self.agent.act(
            self._stacked(arrays, count), self._state, np.zeros(count, np.float32), greedy=True
        )
        actions = self.spec.action.as_counted(np.asarray(actions))
        return self.spec.action.in_form(actions) if batched else self.spec.action.of_one(actions[0])

    def export(
        self,
        path: str | Path,
        file_format: Literal["onnx", "pt2"] = "onnx",
        actions: Literal["greedy", "sampled"] = "greedy",
    ) -> dict[str, Any]:
        """Write a file that acts as this agent does, without apexrl: see ``evaluation.export``.

        Args:
            path: of the new file; one that is there is replaced.
            file_format: ``onnx`` (extra ``onnx``), or ``pt2``, which ``torch.export.load`` reads.
            actions: ``greedy``; or ``sampled``: drawn from the policy by random numbers that the file is given.

        Returns:
            ``inputs`` and ``outputs``: name -> [dtype, shape].

        Raises:
            AgentError: an agent of your own has no ``decide``; or its policy draws no actions.
            ConfigError: packages that write ONNX are missing.
            SnapshotError: the file would act otherwise than the agent.
        """
        from apexrl.evaluation.export import export

        about = {"agent": type(self.agent).__name__, "checkpoint": str(self.checkpoint or "")}
        return export(self.agent, self.spec, Path(path), about, file_format, actions)

    def _stacked(self, arrays: dict[str, Array], count: int) -> Mapping[str, Array]:
        if self.spec.stack == 1:
            return arrays
        if self._frames is None:
            from apexrl.envs import FrameStack

            self._frames = FrameStack(self.spec.stack, count, self.spec.observation)
            return self._frames.push(arrays)
        return self._frames.push(arrays, np.zeros(count, np.bool_))

    def _with_mask(self, observation: Any, mask: Any) -> dict[str, Any]:
        """The observation as ``envs.ActionMasks`` shows it."""
        if not self.spec.masked:
            raise SpecError("this agent was trained without action masks: act() of it takes none")
        if (dtype := np.asarray(mask).dtype).kind not in "bui":
            raise SpecError(f"action_mask holds {dtype} values: give it bool or integers")
        alone = not isinstance(observation, Mapping)
        return {"obs": observation, MASK_KEY: mask} if alone else {**observation, MASK_KEY: mask}

    def _named(self, observation: Any) -> tuple[dict[str, Array], bool]:
        """The observation as named arrays ``[B, ...]``, and whether it came as a batch. What else is shown counts for
        nothing, as in training."""
        values, wanted = named_values(self._whole, observation), set(value_names(self.spec).values())
        if not wanted <= values.keys():
            hint = past_missing(self.spec, values)
            if self.spec.masked and ACTION_MASK not in values:
                hint += ", or call act(observation, action_mask=mask)"
            raise SpecError(f"this agent needs {sorted(wanted)}, but got {sorted(values)}{hint}")
        if ACTION_MASK in values and not self.spec.masked:
            raise SpecError("this agent was trained without action masks: it would not keep to one")
        arrays: dict[str, Array] = varying_rows(self.spec, [values]) if self.spec.padded else {}
        batched = {False} if arrays else set()
        for name, field in self.spec.observation.items():
            if name in arrays:
                continue
            value = np.asarray(values[name])
            if value.dtype.kind not in "biuf":
                value = _as_numbers(name, value, field)
            value = self._shrunk(name, value, field)
            if value.shape == field.shape:
                value, one = value[np.newaxis], True
            elif value.shape[1:] == field.shape and value.ndim == len(field.shape) + 1 and len(value):
                one = False
            else:
                raise SpecError(f"{name} has shape {value.shape}; one is {field.shape}, a batch [B, *{field.shape}]")
            batched.add(not one)
            start = self.spec.starts.get(name, 0)
            value = value - np.int64(start) if start else value
            with np.errstate(invalid="ignore", over="ignore"):  # of NaN, and of what the dtype does not hold
                arrays[name] = stored = value.astype(field.dtype, copy=False)
            if stored is not value and stored.dtype.kind in "iu" and (stored != value).any():
                raise SpecError(_not_held(name, value, field))
            count = self.spec.categories.get(name, 0)
            if count and (stored.min() < 0 or stored.max() >= count):
                raise SpecError(f"{name} holds a value that is none of its space's {start} to {start + count - 1}")
            if stored.dtype.kind == "f" and not np.isfinite(stored).all():
                if value.dtype.kind == "f" and np.isfinite(value).all():
                    raise SpecError(_not_held(name, value, field))
                raise SpecError(f"{name} holds NaN or infinity, for which no action is known")
        if len(batched) > 1 or len({len(value) for value in arrays.values()}) > 1:
            shapes = {name: np.shape(value) for name, value in values.items()}
            raise SpecError(f"the entries of the observation have different batch sizes: {shapes}")
        return arrays, batched.pop()

    def _shrunk(self, name: str, value: Any, field: Field) -> Any:
        """An image, or a batch of them, as training has shown it."""
        ndim = len(field.shape)
        if not (self._image_size and self.spec.is_image(name)) or value.ndim not in (ndim, ndim + 1):
            return value
        shape = value.shape[-ndim:]
        if shape == field.shape or shrunk_shape(shape, self._image_size) != field.shape:
            return value
        from apexrl.envs.shrunk_images import as_whole, shrunk

        return shrunk(as_whole(value, field.dtype), self._image_size, ndim)


def _as_numbers(name: str, value: Array, field: Field) -> Array:
    """An array of Python's numbers, in which None is NaN, as float64. SpecError: it holds something else."""
    try:
        if value.dtype == object and not any(isinstance(one, str | bytes) for one in value.flat):
            return value.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SpecError(f"{name} holds {value.dtype} values, where the agent sees numbers: {field.dtype}")


def _not_held(name: str, value: Array, field: Field) -> str:
    return f"{name} has {value.dtype} values that {field.dtype} does not hold, in which the agent sees it"


def load_agent(
    folder: RunFolder,
    checkpoint: str = "best",
    device: str = "cpu",
    env: Callable[..., Any] | None = None,
    trust: Sequence[str] = (),
    config: Config | None = None,
) -> LoadedAgent:
    """The agent of a run (``apexrl.load``).

    Args:
        checkpoint: ``best`` (or the newest when nothing was evaluated), ``latest``, or a file.
        device: where to run it.
        env: makes the environment, for a run whose environment cannot be imported; used only when
            ``env_spec.json`` is missing.
        trust: modules of which the folder may name an agent, a network or an environment.
        config: of this program's own run, in place of the folder's.

    Raises:
        ConfigError: the folder's settings do not fit its agent's name, or it names code that is not trusted.
        SnapshotError: there are no weights, they cannot be read, or they are of another agent.
    """
    from apexrl.agents import agent_class, check_identity
    from apexrl.topologies.validation import with_own_settings

    spec = folder.spec()
    if config is None:
        config = trusted_config(folder, trust, env, looks=spec is None)
    config = with_own_settings(_untrained(config))
    check_identity(config.agent)
    spec = spec or _look(config)
    found = _find(folder, checkpoint)
    _check_size(config, spec, found)
    agent: Agent = agent_class(config.agent.agent)(spec, config.agent, device, config.seed)
    try:
        if found.kind == "weights":
            agent.load(found.arrays)
        else:
            agent.load_state_dict(found.arrays)
            agent.load(agent.weights())  # those that act, where they are not those that learn (--target-acts)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise SnapshotError(
            f"{found.path} does not fit agent {config.agent.agent} of {folder.config_path}: {error}"
        ) from error
    return LoadedAgent(agent, spec, found.path, config.env.image_size)


def _check_size(config: Config, spec: EnvSpec, found: checkpoints.Checkpoint) -> None:
    """Refuse a network that is far larger than its stored weights, before memory is allocated."""
    held = sum(array.nbytes for array in found.arrays.values())
    needs = least_nbytes(config.agent, spec)
    if needs > max(_LARGE, 64 * held):
        raise SnapshotError(
            f"{found.path} holds {held} bytes of weights, and the settings and spaces of its run folder describe a "
            f"network of {needs} bytes or more: one of them is not this run's"
        )


def _find(folder: RunFolder, wanted: str) -> checkpoints.Checkpoint:
    if wanted not in ("best", "latest"):
        path = expanded(wanted)
        if not path.is_file():
            raise ConfigError(f"there is no checkpoint {wanted}: give best, latest, or a file of {folder.checkpoints}")
        return checkpoints.load(path)
    best = checkpoints.best(folder.checkpoints) if wanted == "best" else None
    found = checkpoints.load(best) if best else checkpoints.load_latest(folder.checkpoints)
    if found is None:
        what = "has no checkpoint" if folder.checkpoints.is_dir() else f"has no folder {folder.checkpoints.name}"
        raise SnapshotError(f"{folder.path} {what}: it has not come to its first one, or they were moved or deleted")
    return found


def trusted_config(
    folder: RunFolder, trust: Sequence[str] = (), env: Callable[..., Any] | None = None, looks: bool = True
) -> Config:
    """The configuration of a folder from an untrusted source.

    Args:
        trust: modules from which it may name code.
        env: makes the environment, in place of the one that the folder names.
        looks: whether the environment is made here.

    Raises:
        ConfigError: it names code of another module.
    """
    config = folder.config()
    if env is not None:
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, env=env))
    return entrusted(_untrained(config), trust, str(folder.config_path), env=looks)


def _untrained(config: Config) -> Config:
    """``config`` without the topology that it was trained with, which nothing here needs."""
    return dataclasses.replace(config, topology=Config().topology, wiring=WiringConfig())


def _look(config: Config) -> EnvSpec:
    """Make the environment once, for its spaces."""
    from apexrl.envs import make_vector

    vector = make_vector(config.env, 1, config.seed)
    try:
        return vector.spec
    finally:
        vector.close()
