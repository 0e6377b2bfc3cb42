"""Finds the vectorised form of an environment, where it brings one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym

from apexrl.config import EnvConfig
from apexrl.envs.action_masks import METHOD
from apexrl.envs.atari_game import SINGLE_ENTRY

Maker = Callable[..., gym.vector.VectorEnv[Any, Any, Any]]


class VectorForm(NamedTuple):
    """A vectorised form."""

    make: Maker  # called with ``num_envs``
    only: bool  # there are no single environments
    time_limit: int | None  # environment steps, as it is registered


def vector_form(config: EnvConfig) -> VectorForm | None:
    """The form that the environment's id has in Gymnasium's registry, or a callable with the parameter ``num_envs``.

    None where it has none, or none that takes what ``config`` says while single environments may.

    Raises:
        ModuleNotFoundError: the module in the id is not there; whatever it raises.
    """
    kwargs = dict(config.env_kwargs)
    if config.max_episode_steps:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if not isinstance(config.env, str):
        if "num_envs" not in _parameters(config.env):
            return None
        return VectorForm(partial(config.env, **kwargs), True, config.max_episode_steps or None)
    module, _, env_id = config.env.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = gym.registry.get(env_id)
    if spec is None or spec.vector_entry_point is None or spec.entry_point == SINGLE_ENTRY:
        return None  # ale-py's vector form shows other observations than its single one
    only, entry = spec.entry_point is None, spec.vector_entry_point
    accepted = _parameters(gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    if not only and _only_single_has_masks(spec):
        return None
    if not only and (spec.additional_wrappers or not (open_ended or kwargs.keys() <= accepted.keys())):
        return None
    make = partial(gym.make_vec, config.env, vectorization_mode="vector_entry_point", **kwargs)
    return VectorForm(make, only, config.max_episode_steps or spec.max_episode_steps)


def _only_single_has_masks(spec: gym.envs.registration.EnvSpec) -> bool:
    """Whether single environments have the method that tells masks, and the vectorised form has none."""
    single, several = (
        hasattr(gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry, METHOD)
        for entry in (spec.entry_point, spec.vector_entry_point)
    )
    return single and not several


def _parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(maker).parameters)
    except ValueError:  # of a built-in class, which says nothing of them
        return {}
