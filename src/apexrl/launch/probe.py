"""The probe: makes the environment and the agent once, to learn shapes, extra fields and the size of the weights."""

from __future__ import annotations

import math
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np

from apexrl import errors
from apexrl.config import Config
from apexrl.errors import AgentError, ApexrlError, ConfigError, SpecError
from apexrl.links.local import worker_messages
from apexrl.protocols import Item, Place, Prioritizing
from apexrl.roles.checkpointing import take_up_initial
from apexrl.run import checkpoint
from apexrl.run.spec_json import fields_to_json, spec_from_json, spec_to_json
from apexrl.shared.available_memory import memory_limits, size
from apexrl.spec import EnvSpec, Field
from apexrl.topologies.program import OPTIONAL, Probe

_LARGE_IMAGE: Final = 1 << 15
"""Numbers of an image: height × width × channels."""
_MANY_VALUES: Final = 1 << 16
"""Of one category."""
_LARGE_NBYTES: Final = 1 << 26
"""Of weights."""


def probe_beginning(config: Config) -> Probe:
    """``probe_learner`` of a run that begins here: its initial weights must be here too, and fit."""
    return probe_learner(config, begins=True)


def probe_learner(config: Config, begins: bool = False) -> Probe:
    """``probe`` where the learner will run: its device must be here, and its dataset, if it has one.

    Raises:
        DatasetError: the dataset is not here, or is of another environment.
    """
    from apexrl.roles.compute_device import torch_device

    if config.learner.device != "auto":  # which is always here
        torch_device(config.learner.device)
    found = probe(config, begins)
    if config.replay.dataset:
        from apexrl.datasets.minari_files import Dataset

        Dataset(config.replay.dataset).check_fits(found.spec)
    return found


def probe(config: Config, begins: bool = False) -> Probe:
    """Make one environment and the agent in this process, look, and close them.

    Args:
        begins: the agent's initial weights are here, if it has some, and must fit.
    """
    from apexrl.agents import AGENTS, recorded
    from apexrl.agents.named_vectors import sizes
    from apexrl.agents.parameter_layout import places
    from apexrl.envs import make_vector
    from apexrl.roles.executed_actions import check_actions

    env = make_vector(config.env, 1, config.seed)
    try:
        spec = env.spec
        check_size(config, spec)
        check_actions(config.evaluator, spec.action)
        check_goals(config)
        agent = made(config, spec)
        nbytes = weights_nbytes(config.agent.agent, agent)
        if config.agent.agent not in AGENTS:
            check_state(config.agent.agent, agent)
        if begins and config.learner.initial_weights:
            take_up_initial(agent, config.learner.initial_weights, config.agent.agent)
        offers = tuple(name for name in OPTIONAL if hasattr(agent, name))
        item: Item = getattr(agent, "item", Item())
        if item.kind != "unroll" and not isinstance(agent, Prioritizing):
            raise AgentError(
                f"agent {config.agent.agent!r} learns from {item.kind}s, which are drawn by priority, but lacks "
                "priorities; see apexrl.protocols.Prioritizing for what it does"
            )
        return Probe(spec, recorded(agent), nbytes, item, offers, sizes(agent), places(agent))
    finally:
        env.close()


def large_network(seen: Probe) -> str:
    """What to say of images or categories that make a large network; empty: nothing."""
    if seen.weights_nbytes <= _LARGE_NBYTES:
        return ""
    shapes = [field.shape for name, field in seen.spec.observation.items() if seen.spec.is_image(name)]
    shape = max(shapes, key=math.prod, default=())
    values = max(seen.spec.categories.values(), default=0)
    if math.prod(shape) > _LARGE_IMAGE:
        what = f"images of {' × '.join(map(str, shape))} make"
        remedy = "let it see smaller ones, as by --image-size 84"
    elif values > _MANY_VALUES:
        what = f"{values:,} possible values of an observation, each with weights of its own, make"
        remedy = "let the environment show the parts that a value stands for, as by MultiDiscrete, or numbers in a Box"
    else:
        return ""
    return (
        f"{what} a network of {seen.weights_nbytes / 4e6:,.0f} million weights ({size(seen.weights_nbytes)}), which is "
        f"slow: {remedy}"
    )


def check_goals(config: Config) -> None:
    """Refuse goals in hindsight for an environment whose rewards cannot be made again.

    Raises:
        EnvError: what it lacks.
    """
    if config.replay.hindsight == "none":
        return
    from apexrl.envs.goal_rewards import GoalRewards

    with closing(GoalRewards(config.env)) as rewards:
        rewards.check(config.seed)


def check_size(config: Config, spec: EnvSpec) -> None:
    """Refuse a shipped agent's network whose weights alone need more memory than there is.

    Raises:
        ConfigError: with the numbers.
    """
    from apexrl.agents import AGENTS
    from apexrl.agents.network_size import least_nbytes

    if config.agent.agent not in AGENTS or config.agent.network:
        return
    needs = least_nbytes(config.agent, spec)
    for limit in memory_limits():
        if needs > limit.nbytes:
            raise ConfigError(
                f"the network's weights alone need {size(needs)} of memory, but {limit.why}: give its layers fewer "
                "units, as in --hidden 256 256"
            )


def made(config: Config, spec: EnvSpec) -> Any:
    """The agent for an environment.

    Raises:
        AgentError: it is one of your own, and cannot be made.
        ApexrlError: a shipped one says what it does not bear.
    """
    from apexrl.agents import AGENTS, agent_class

    name = config.agent.agent
    found = agent_class(name)
    try:
        return found(spec, config.agent, "cpu", config.seed)
    except ApexrlError:
        raise
    except Exception as error:
        if name in AGENTS:
            raise  # ours to mend: with all of its traceback
        raise AgentError(
            f"agent {name} cannot be made for this environment: {found.__name__}(spec, config, device, seed) raised "
            f"{told(error)}. Observations here are {shown(spec)}; see apexrl.protocols.Agent for how an agent is made"
        ) from error


def weights_nbytes(name: str, agent: Any) -> int:
    """Bytes of what an agent publishes for acting.

    Raises:
        AgentError: it publishes nothing, or no arrays.
    """
    try:
        weights = dict(agent.weights())
        nbytes = sum(int(array.nbytes) for array in weights.values())
    except ApexrlError:
        raise
    except Exception as error:
        raise AgentError(
            f"agent {name}: weights() must return a dict of arrays, name -> array, but raised {told(error)}"
        ) from error
    if not nbytes:
        empty = ", ".join(f"{key!r} {list(array.shape)}" for key, array in weights.items())
        raise AgentError(
            f"agent {name}: weights() returned {f'only empty arrays ({empty})' if empty else 'an empty dict'}. It must "
            "return all that acting needs: actors and the evaluator know of the learner's work by nothing else"
        )
    return nbytes


def check_state(name: str, agent: Any) -> None:
    """Refuse an agent whose state cannot be kept, before it has learned anything.

    Raises:
        AgentError: ``state_dict()`` fails, or is no flat dict of arrays.
    """
    wanted = "state_dict() must return a flat dict, name -> NumPy array: one entry for each array that a resume needs"
    try:
        state = agent.state_dict()
    except ApexrlError:
        raise
    except Exception as error:
        raise AgentError(f"agent {name}: {wanted}; it raised {told(error)}") from error
    if not isinstance(state, Mapping):
        raise AgentError(f"agent {name}: {wanted}; it returned {state!r:.60}")
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(getattr(value, "dtype", None), np.dtype):
            raise AgentError(f"agent {name}: {wanted}; it returned {value!r:.60} as {key!r:.60}")
        try:
            checkpoint.stored_dtype(key, value)
        except SpecError as error:
            raise AgentError(f"agent {name}: {wanted}; {error}") from error


def told(error: Exception) -> str:
    """An error, and the line that raised it, for a message: ``KeyError: 'x' (/home/me/own.py:12)``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def shown(spec: EnvSpec) -> str:
    """What an environment shows, for a message: ``observation/v float32 [3]``."""
    stack = [spec.stack] if spec.stack > 1 else []
    return ", ".join(f"{name} {field.dtype} {[*stack, *field.shape]}" for name, field in spec.observation.items())


def probe_env(config: Config) -> Probe:
    """Make one environment in this process, look, and close it; of an agent nothing is known here."""
    from apexrl.envs import make_vector

    env = make_vector(config.env, 1, config.seed)
    try:
        return Probe(env.spec, {}, 0)
    finally:
        env.close()


def probe_work(channel: socket.socket, config: Config, look: Callable[[Config], Probe] = probe) -> int:
    """``look`` in a process of its own; what it found, or the error, goes back as one message."""
    try:
        found = look(config)
    except Exception as error:
        worker_messages.send(channel, "error", error_values(error))
        return 1
    answer: dict[str, Any] = {
        "spec": spec_to_json(found.spec),
        "step_spec": fields_to_json(found.step_spec),
        "nbytes": found.weights_nbytes,
        "item": found.item._asdict(),
        "offers": found.offers,
        "vectors": found.vectors,
        "places": {name: [*place] for name, place in found.places.items()},
    }
    worker_messages.send(channel, "probe", answer)
    return 0


def probe_answer(message: worker_messages.Message) -> Probe:
    """Understand what ``probe_work`` sent; an error there is raised here, under its own class if it is one of ours."""
    values = message.values
    if message.kind == "error":
        raise revive(values["kind"], values["error"], values["traceback"])
    step_spec = {
        name: Field(**{**field, "shape": tuple(field["shape"])}) for name, field in values["step_spec"].items()
    }
    spec, item, offers = spec_from_json(values["spec"]), Item(**values["item"]), tuple(values["offers"])
    places = {name: Place(group, start, tuple(shape)) for name, (group, start, shape) in values["places"].items()}
    return Probe(spec, step_spec, values["nbytes"], item, offers, values["vectors"], places)


def error_values(error: Exception) -> dict[str, str]:
    """An error being handled as JSON-able values, for ``revive``."""
    return {"kind": type(error).__name__, "error": str(error), "traceback": traceback.format_exc()[-32_000:]}


def revive(kind: str, text: str, trace: str) -> errors.ApexrlError:
    """An error that crossed a process: one of ours keeps its class, another's traceback becomes the message."""
    known: Any = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.ApexrlError):
        return known(text)
    return errors.WorkerError(trace.rstrip())


def fatal_error(name: str, errors: Sequence[Mapping[str, Any]]) -> ApexrlError | None:
    """The error of a worker that a restart would only repeat, if its ``error`` messages hold one."""
    for values in errors:
        if values["fatal"]:
            kind, _, text = str(values["error"]).partition(": ")
            return revive(kind, f"{name}: {text}", str(values["traceback"]))
    return None
