"""Observations -> features: an MLP for all vectors, convolutions for each image, encoders of texts, sequences, graphs.

Layers keep PyTorch's initialisation, U(±1/√fan_in), which is what the networks of DQN and Ape-X began from. A policy
and its value begin orthogonal (``Trunk.begin_orthogonal``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.image_shapes import channels_last
from apexrl.networks.category_encoders import EMBEDDED, CellEmbedding, is_map, too_many
from apexrl.networks.convolutions import Architecture, chosen, convolutions
from apexrl.networks.custom_encoder import own_encoder
from apexrl.networks.layer_norm import unit_norm
from apexrl.networks.varying_encoders import varying_encoders
from apexrl.spec import ACTION_MASK, EnvSpec, Field

Precision = Literal["float32", "bfloat16", "auto"]


class LayerChoice(NamedTuple):
    """Which layers encoders have."""

    convolutions: Architecture = "auto"
    layer_norm: bool = False  # before every ReLU
    precision: Precision = "float32"  # of convolutions
    width: int = 1  # factor of their filters


PLAIN = LayerChoice()


class VectorEncoder(nn.Module):
    """Flattens one observation, stacked frames included, and applies fully connected layers with ReLU.

    Args:
        field: one frame.
        stack: frames seen at once.
        categories: > 0: whole numbers, encoded one-hot.
        hidden: units per layer; none hands the inputs on.
        layer_norm: before every ReLU.
    """

    def __init__(
        self, field: Field, stack: int, categories: int, hidden: Sequence[int], layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.categories = categories
        self.inputs = stack * math.prod(field.shape) * (categories or 1)
        self._scale = 1.0 / 255.0 if field.dtype == "uint8" else 1.0
        sizes = (self.inputs, *hidden)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))
        self.norms = nn.ModuleList(unit_norm(units, layer_norm) for units in hidden)
        self.layer_norm = layer_norm
        self.features = sizes[-1]

    def flatten(self, observation: Tensor) -> Tensor:
        """[B, …] of any dtype -> float32 [B, inputs]."""
        if self.categories:
            one_hot = torch.nn.functional.one_hot(observation.long(), self.categories)
            return one_hot.to(torch.float32).reshape(observation.shape[0], -1)
        flat = observation.reshape(observation.shape[0], -1).to(torch.float32)
        return flat * self._scale if self._scale != 1.0 else flat

    def forward(self, observation: Tensor) -> Tensor:
        x = self.flatten(observation)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu_(norm(layer(x)))
        return x


class ImageEncoder(nn.Module):
    """Convolutions over an image whose channels are its own times the stacked frames. The fully connected units after
    them belong to the head.

    Args:
        field: one frame: [H, W], [H, W, C] or [C, H, W]; C is taken to be the smaller end.
        stack: frames seen at once.
        choice: which convolutions.
        channels_first: it is [C, H, W], whichever end is smaller.

    Raises:
        SpecError: the image is too small for them.
    """

    def __init__(self, field: Field, stack: int, choice: LayerChoice = PLAIN, channels_first: bool = False) -> None:
        super().__init__()
        shape = field.shape
        self._channels_last = channels_last(shape) and not channels_first
        if len(shape) == 2:
            channels, height, width = 1, *shape
        else:
            channels, height, width = (shape[2], *shape[:2]) if self._channels_last else shape
        self._input = (channels * stack, height, width)
        self._stacked_last = self._channels_last and stack > 1
        self._scale = 1.0 / 255.0 if field.dtype == "uint8" else 1.0
        kind = chosen(choice.convolutions, shape, min(height, width))
        self._large, self._residual = kind in ("nature", "shallow", "resnet"), kind == "resnet"
        self.layers, self.norms = convolutions(kind, channels * stack, choice.layer_norm, choice.width)
        small = choice.precision == "auto" and kind == "minatar"  # a conversion costs more than it saves
        self.precision: Precision = "float32" if small else choice.precision
        with torch.no_grad():
            self.features = int(self._convolve(torch.zeros(1, *self._input)).shape[1])

    def forward(self, observation: Tensor) -> Tensor:
        if self._stacked_last:  # [B, stack…, H, W, C] -> [B, stack, C, H, W]
            observation = observation.flatten(1, -4).permute(0, 1, 4, 2, 3)
        elif self._channels_last:  # [B, (1, of a team of one) H, W, C] -> [B, C, H, W]
            observation = observation.flatten(0, -4).permute(0, 3, 1, 2)
        image = observation.reshape(observation.shape[0], *self._input)
        rounded = _in_bfloat16(self.precision, image.device.type)
        if self._large and image.device.type == "cpu" and torch.is_grad_enabled() and not rounded:
            # On a CPU, forward and backward pass together are faster with the channels last; a forward pass alone is
            # not. Bytes are a quarter of what they are turned into.
            image = image.contiguous(memory_format=torch.channels_last)
        image = image.to(torch.float32)
        if self._scale != 1.0:
            image = image.mul_(self._scale)  # of uint8 alone, of which this is a copy
        if rounded:
            with torch.autocast(image.device.type, torch.bfloat16):
                return self._convolve(image).to(torch.float32)
        return self._convolve(image)

    def _convolve(self, image: Tensor) -> Tensor:
        if self._residual:
            for stage in self.layers:
                image = stage(image)
            return torch.relu_(self.norms[0](image)).flatten(1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            image = torch.relu_(norm(layer(image)))
        return image.flatten(1)


class MapEncoder(nn.Module):
    """Convolutions over the embeddings of categories in two dimensions."""

    def __init__(self, field: Field, stack: int, categories: int, choice: LayerChoice = PLAIN) -> None:
        super().__init__()
        self.cells = CellEmbedding(field, stack, categories)
        self.image = ImageEncoder(Field(self.cells.shape, "float32"), 1, choice, channels_first=True)
        self.features = self.image.features

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.image(self.cells(observation))
        return features


class EmbeddedVector(nn.Module):
    """Categories that are too many for one-hot inputs: the embeddings of all, side by side, and fully connected layers
    with ReLU. Arguments as of ``VectorEncoder``."""

    def __init__(self, field: Field, stack: int, categories: int, hidden: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(categories, EMBEDDED)
        embedded = Field((stack * math.prod(field.shape) * EMBEDDED,), "float32")
        self.vector = VectorEncoder(embedded, 1, 0, hidden, layer_norm)
        self.features = self.vector.features

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.vector(self.table(observation.long()))
        return features


FieldEncoder = VectorEncoder | ImageEncoder | MapEncoder | EmbeddedVector


class ObservationEncoder(nn.Module):
    """One encoder per image, text, sequence and graph, and an MLP for vectors.

    Where there is no image, and more than one vector, a last MLP takes all features side by side. Behind an image a
    fully connected layer does that, which belongs to the head.

    ``forward`` takes name -> [B, (stack,) *shape] and returns float32 [B, features].
    """

    def __init__(self, spec: EnvSpec, hidden: Sequence[int], choice: LayerChoice = PLAIN) -> None:
        super().__init__()
        self.names = tuple(name for name in spec.observation if not spec.varies(name))
        varying = varying_encoders(spec)
        if not self.names and not varying:
            raise SpecError("the environment shows no observation field")
        self.sees_image = any(sees_image(spec, name) for name in self.names)
        joins = (not self.sees_image and len(self.names) + len(varying) > 1) or not self.names
        encoders = [_encoder(name, spec, () if joins else hidden, choice) for name in self.names]
        self.encoders = nn.ModuleList(encoders)
        self.varying = nn.ModuleList(varying)
        self._varies = bool(varying)
        self.features = sum(encoder.features for encoder in (*encoders, *varying))
        self.joint: VectorEncoder | None = None
        if joins and hidden:
            self.joint = VectorEncoder(Field((self.features,), "float32"), 1, 0, hidden, choice.layer_norm)
            self.features = self.joint.features

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        parts = [encoder(observation[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        if self._varies:
            parts += [encoder(observation) for encoder in self.varying]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return x if self.joint is None else self.joint(x)


class Encoder(NamedTuple):
    """An encoder, and what is built behind it depends on."""

    module: nn.Module  # name -> [B, (stack,) *shape] to float32 [B, features]
    features: int
    sees_image: bool  # convolutions of ours: a fully connected layer is to follow


def encoder_for(spec: EnvSpec, hidden: Sequence[int], network: str = "", choice: LayerChoice = PLAIN) -> Encoder:
    """The encoder that suits an environment: see the classes above.

    Three dimensions are an image, as are two of uint8; so are categories in two or three dimensions, which are
    embedded. Texts, sequences and graphs have encoders of their own; everything else is a vector.

    Args:
        network: ``package.module:Class`` of your own, called as ``Class(spec)``: a ``torch.nn.Module`` with an
            attribute ``features``; its ``forward`` takes name -> [B, (stack,) *shape].
        choice: which layers ours have; those of your own are as they are.

    Raises:
        SpecError: an image is too small for convolutions, or ``network`` does not fit the observations.
        ConfigError: ``network`` cannot be imported, or is no such class.
    """
    shown = spec.without_mask()
    if network:
        own, features = own_encoder(network, shown)
        if shown is not spec:
            own.register_forward_pre_hook(_without_mask, prepend=True)
        return Encoder(own, features, sees_image=False)
    encoder = ObservationEncoder(shown, hidden, choice)
    return Encoder(encoder, encoder.features, encoder.sees_image)


def _without_mask(encoder: nn.Module, inputs: tuple[Mapping[str, Tensor]]) -> tuple[Mapping[str, Tensor]]:
    """What an encoder is given, without the mask of actions."""
    return ({name: value for name, value in inputs[0].items() if name != ACTION_MASK},)


def sees_image(spec: EnvSpec, name: str) -> bool:
    """Whether a field is encoded by convolutions: an image, or categories that lie like one."""
    return spec.is_image(name) or is_map(spec.observation[name], spec.categories.get(name, 0))


@contextmanager
def in_float32(network: nn.Module) -> Iterator[None]:
    """Within it no ``ImageEncoder`` of ``network`` computes in bfloat16."""
    encoders = [module for module in network.modules() if isinstance(module, ImageEncoder)]
    before = [encoder.precision for encoder in encoders]
    for encoder in encoders:
        encoder.precision = "float32"
    try:
        yield
    finally:
        for encoder, precision in zip(encoders, before, strict=True):
            encoder.precision = precision


@cache
def _in_bfloat16(precision: Precision, device: str) -> bool:
    """Whether convolutions compute in bfloat16; ``auto``: where the processor multiplies such numbers itself."""
    if precision != "auto":
        return precision == "bfloat16"
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able: dict[str, object] = (
        getattr(torch.cpu, "get_capabilities", dict)() if device == "cpu" else {}
    )  # older releases cannot tell
    return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("bf16"))


def _encoder(name: str, spec: EnvSpec, hidden: Sequence[int], choice: LayerChoice) -> FieldEncoder:
    field, categories = spec.observation[name], spec.categories.get(name, 0)
    if sees_image(spec, name):
        try:
            if categories:
                return MapEncoder(field, spec.stack, categories, choice)
            one = spec.each_sees(name)  # what the agents of a team see counts as so many frames
            return ImageEncoder(one, spec.stack * (field.nbytes // one.nbytes), choice)
        except SpecError as error:
            raise SpecError(f"{name}: {error}") from error
    if too_many(field, categories):
        return EmbeddedVector(field, spec.stack, categories, hidden, choice.layer_norm)
    return VectorEncoder(field, spec.stack, categories, hidden, choice.layer_norm)
