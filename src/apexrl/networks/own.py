"""An encoder of the user's own, by its name: ``--network package.module:Class``."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from apexrl.errors import ConfigError, SpecError
from apexrl.spec import EnvSpec

_ROWS = 2  # of the observation that it is tried on: an encoder that mixes up its rows shows it


def own_encoder(name: str, spec: EnvSpec) -> tuple[nn.Module, int]:
    """An encoder made as ``Class(spec)`` and tried once, and its ``features``.

    Whoever calls it, it is in training mode where a gradient is to be taken, and in evaluation mode elsewhere: in
    acting, in priorities and in targets. So dropout and batch normalisation mean what they should.

    Raises:
        ConfigError: there is no such module or class, or it is no ``torch.nn.Module`` with ``features``.
        SpecError: it cannot be made for this environment, or cannot take its observations, or does not return float32
            [B, features].
    """
    encoder = _made(name, spec)
    features = getattr(encoder, "features", None)
    if not isinstance(features, int) or isinstance(features, bool) or features < 1:
        raise ConfigError(
            f"--network {name} has no attribute features: the number of numbers that it returns for an observation"
        )
    encoder.register_forward_pre_hook(_set_mode)
    try:
        with torch.no_grad():
            returned = encoder(_example(spec))
    except Exception as error:
        shown = ", ".join(f"{key} {list(value.shape)}" for key, value in _example(spec).items())
        raise SpecError(
            f"--network {name} cannot take this environment's observations ({shown}): {type(error).__name__}: {error}"
        ) from error
    if not isinstance(returned, Tensor):
        raise SpecError(f"--network {name} returned a {type(returned).__name__}, not a tensor [B, {features}]")
    if returned.shape != (_ROWS, features) or returned.dtype != torch.float32:
        raise SpecError(
            f"--network {name} returned {returned.dtype} {list(returned.shape)} for {_ROWS} observations; it must be "
            f"torch.float32 [{_ROWS}, {features}], as its attribute features says"
        )
    return encoder, features


def _set_mode(encoder: nn.Module, inputs: Any) -> None:
    if encoder.training != torch.is_grad_enabled():
        encoder.train(torch.is_grad_enabled())


def _made(name: str, spec: EnvSpec) -> nn.Module:
    found = _class(name)
    try:
        inspect.signature(found).bind(spec)
    except TypeError as error:
        raise ConfigError(
            f"--network {name} is made as {found.__name__}(spec), of an apexrl.spec.EnvSpec, but takes something else: "
            f"{error}"
        ) from error
    try:
        return found(spec)
    except Exception as error:
        raise SpecError(
            f"--network {name} cannot be made for this environment: {found.__name__}(spec) raised "
            f"{type(error).__name__}: {error}"
        ) from error


def _class(name: str) -> type[nn.Module]:
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise ConfigError(f"--network {name!r} must be package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--network {name}: there is no module {error.name!r}; it must be installed or in the current folder"
        ) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"--network {name}: module {module_name} has no class {class_name!r} of torch.nn.Module")
    return found


def _example(spec: EnvSpec) -> dict[str, Tensor]:
    frames = (spec.stack,) if spec.stack > 1 else ()
    return {
        key: torch.zeros((_ROWS, *frames, *field.shape), dtype=getattr(torch, field.dtype))
        for key, field in spec.observation.items()
    }
