"""Looks at an environment and an agent before anything is built for them: shapes, extra fields, size of the weights."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from apexrl import errors
from apexrl.config import Config
from apexrl.errors import AgentError
from apexrl.links import messages
from apexrl.protocols import Item, Place, Prioritizing
from apexrl.run_folder import spec_from_json, spec_to_json
from apexrl.spec import Field
from apexrl.topologies.program import OPTIONAL, Probe


def probe(config: Config) -> Probe:
    """Make one environment and the agent in this process, look, and close them."""
    from apexrl.agents import agent_class, recorded
    from apexrl.agents.places import places
    from apexrl.agents.vectors import sizes
    from apexrl.envs import make_vector

    env = make_vector(config.env, 1, config.seed)
    try:
        spec = env.spec
        agent = agent_class(config.agent.agent)(spec, config.agent, "cpu", config.seed)
        size = sum(array.nbytes for array in agent.weights().values())
        offers = tuple(name for name in OPTIONAL if hasattr(agent, name))
        item: Item = getattr(agent, "item", Item())
        if item.kind != "unroll" and not isinstance(agent, Prioritizing):
            raise AgentError(
                f"agent {config.agent.agent!r} learns from {item.kind}s, which are drawn by priority, but lacks "
                "priorities; see apexrl.protocols.Prioritizing for what it does"
            )
        return Probe(spec, recorded(agent), size, item, offers, sizes(agent), places(agent))
    finally:
        env.close()


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
        text = traceback.format_exc()
        values = {"kind": type(error).__name__, "error": str(error), "traceback": text[-32_000:]}
        messages.send(channel, "error", values)
        return 1
    answer: dict[str, Any] = {
        "spec": spec_to_json(found.spec),
        "step_spec": step_spec_to_json(found.step_spec),
        "nbytes": found.weights_nbytes,
        "item": found.item._asdict(),
        "offers": found.offers,
        "vectors": found.vectors,
        "places": {name: [*place] for name, place in found.places.items()},
    }
    messages.send(channel, "probe", answer)
    return 0


def step_spec_to_json(fields: Mapping[str, Field]) -> dict[str, Any]:
    """An agent's extra fields as JSON-able values."""
    return {name: {**vars(field), "shape": list(field.shape)} for name, field in fields.items()}


def probe_answer(message: messages.Message) -> Probe:
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


def revive(kind: str, text: str, trace: str) -> errors.ApexrlError:
    """An error that crossed a process: one of ours keeps its class, another's traceback becomes the message."""
    known: Any = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.ApexrlError):
        return known(text)
    return errors.WorkerError(trace.rstrip())
