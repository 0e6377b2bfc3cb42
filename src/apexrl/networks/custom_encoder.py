"""An encoder of the user's own, by its name: ``--network package.module:Class``."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apexrl.config.outside import imported
from apexrl.errors import ConfigError, SpecError
from apexrl.spec import EnvSpec

_DRAWS = "apexrl_draws"  # the attribute of an own encoder that holds its ``Draws``
_ROWS = 2  # of the observation that it is tried on: an encoder that mixes up its rows shows it


def own_encoder(name: str, spec: EnvSpec) -> tuple[nn.Module, int]:
    """An encoder made as ``Class(spec)`` and tried once, and its ``features``.

    It is in training mode where a gradient is to be taken, and in evaluation mode elsewhere: in
    acting, in priorities and in targets. So dropout and batch normalisation mean what they should. Frozen parameters
    (``requires_grad`` False) stay as they are; running statistics move all the same, unless the class overrides
    ``train`` to stay in evaluation mode.

    What it draws from PyTorch's generator in training mode, on a CPU or CUDA, is the seed's (``Draws``). In evaluation
    mode it should draw nothing: that is reproducible nowhere.

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
    draws = Draws(_seed())
    setattr(encoder, _DRAWS, draws)
    encoder.register_forward_pre_hook(draws.begin)
    encoder.register_forward_hook(draws.end, always_call=True)
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


class Draws:
    """The random numbers of an encoder while it learns, such as dropout's. Generators are seeded for every pass.

    PyTorch's own are left as they were, so that neither knows of the other. Seed and number of passes are all that a
    checkpoint needs to go on exactly.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.passes = seed, 0
        self._before: list[tuple[torch.Generator, Tensor]] = []

    def begin(self, encoder: nn.Module, inputs: Any) -> None:
        """Before a pass."""
        if not encoder.training:
            return
        numbers = np.random.SeedSequence([self.seed, self.passes]).generate_state(1, np.uint64)
        self.passes += 1
        for generator in _generators(next(iter(inputs[0].values())).device):
            self._before.append((generator, generator.get_state()))
            generator.manual_seed(int(numbers[0]))

    def end(self, encoder: nn.Module, inputs: Any, features: Any) -> None:
        """After it, even if it failed."""
        while self._before:
            generator, state = self._before.pop()
            generator.set_state(state)


def draws_of(network: nn.Module) -> list[Draws]:
    """Of all own encoders in ``network``, in their order."""
    return [getattr(module, _DRAWS) for module in network.modules() if hasattr(module, _DRAWS)]


def _seed() -> int:
    """Of the generator of layers, which gives the next layer what it would have given without."""
    with torch.random.fork_rng(devices=[]):
        return int(torch.randint(2**62, (), dtype=torch.int64))


def _generators(device: torch.device) -> list[torch.Generator]:
    on_cuda = [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
    return [torch.default_generator, *on_cuda]


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
    found = imported(f"--network {name}", name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"--network {name}: module {module_name} has no class {class_name!r} of torch.nn.Module")
    return found


def _example(spec: EnvSpec) -> dict[str, Tensor]:
    frames = (spec.stack,) if spec.stack > 1 else ()
    return {
        key: torch.zeros((_ROWS, *frames, *field.shape), dtype=getattr(torch, field.dtype))
        for key, field in spec.observation.items()
    }
