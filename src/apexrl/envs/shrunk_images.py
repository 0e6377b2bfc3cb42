"""Images of observations, shrunk by averages over areas of their pixels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import gymnasium as gym
import numpy as np

from apexrl.errors import ConfigError
from apexrl.image_shapes import channels_last, is_image, shrunk_shape, sides_of
from apexrl.spec import Array


class ShrunkImages(gym.ObservationWrapper[Any, Any, Any]):
    """Shows every image, also in a Dict or a Tuple, with sides of at most ``size`` pixels (``shrunk``)."""

    def __init__(self, env: gym.Env[Any, Any], size: int) -> None:
        super().__init__(env)
        self._size = size
        self._whole = env.observation_space
        self.observation_space = _space(env.observation_space, size)

    def observation(self, observation: Any) -> Any:
        return _shown(self._whole, observation, self._size)


def shrunk(image: Array, size: int, ndim: int = 0) -> Array:
    """An image whose sides have at most ``size`` pixels, each of which is the average of the area that it stands for.

    Args:
        image: ``[…, H, W]``, ``[…, H, W, C]`` or ``[…, C, H, W]`` of any dtype (``image_shapes.channels_last``).
        size: longer sides become as long; shorter ones stay.
        ndim: axes of one image, 2 or 3; 0: all.

    Returns:
        Of the same dtype; whole numbers are rounded. Those of 64 bits are as exact as float64 is.
    """
    ndim = ndim or image.ndim
    shape = image.shape[image.ndim - ndim :]
    height, width = sides_of(shape)
    dtype = "float32" if image.dtype.itemsize < 4 or image.dtype == np.float32 else "float64"
    rows, columns = _averages(height, min(height, size), dtype), _averages(width, min(width, size), dtype)
    values: Any = image.astype(dtype, copy=False)
    if channels_last(shape):
        flat = rows @ values.reshape(*values.shape[:-2], width * shape[-1])
        parts = np.ascontiguousarray(flat.reshape(*flat.shape[:-1], width, shape[-1]).swapaxes(-1, -2))
        values = (parts.reshape(-1, width) @ columns.T).reshape(*parts.shape[:-1], len(columns)).swapaxes(-1, -2)
    else:
        values = rows @ values @ columns.T
    if image.dtype.kind in "iu":
        info = np.iinfo(cast("Any", image.dtype))
        values = np.clip(np.rint(values), info.min, info.max if info.bits < 64 else np.nextafter(float(info.max), 0.0))
    return np.ascontiguousarray(values, dtype=image.dtype)


def as_whole(image: Array, dtype: str) -> Array:
    """An image in the whole numbers of ``dtype`` where it holds such in another one; else as it is."""
    if np.dtype(dtype).kind not in "iu" or image.dtype == dtype:
        return image
    with np.errstate(invalid="ignore"):
        whole = image.astype(dtype)
    return whole if np.array_equal(whole, image) else image


@lru_cache(maxsize=64)
def _averages(long: int, short: int, dtype: str) -> Array:
    """Which part each of ``short`` pixels has of each of ``long``: [short, long], rows of sum 1."""
    edges = np.arange(short + 1) * (long / short)
    pixels = np.arange(long)
    shared = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return cast("Array", (np.maximum(shared, 0.0) * (short / long)).astype(dtype))


def _is_large(space: gym.Space[Any], size: int) -> bool:
    if not isinstance(space, gym.spaces.Box) or space.dtype == np.bool_:  # bits have no averages
        return False
    return is_image(space.shape, str(space.dtype)) and max(sides_of(space.shape)) > size


def _space(space: gym.Space[Any], size: int) -> gym.Space[Any]:
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: _space(part, size) for name, part in space.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([_space(part, size) for part in space.spaces])
    if not _is_large(space, size):
        return space
    box = cast("gym.spaces.Box", space)
    dtype, shape = cast("Any", box.dtype).type, shrunk_shape(box.shape, size)
    if not is_image(shape, str(box.dtype)) or channels_last(shape) != channels_last(box.shape):
        raise ConfigError(f"--image-size {size} leaves no image of one of {' × '.join(map(str, box.shape))}: give more")
    return gym.spaces.Box(box.low.min(), box.high.max(), shape, dtype)


def _shown(space: gym.Space[Any], observation: Any, size: int) -> Any:
    """The observation with small images. What does not fit its space is passed on: it is refused where it is read."""
    if isinstance(space, gym.spaces.Dict) and isinstance(observation, Mapping):
        parts = space.spaces
        return {name: _shown(parts[name], one, size) if name in parts else one for name, one in observation.items()}
    if isinstance(space, gym.spaces.Tuple) and isinstance(observation, tuple) and len(observation) == len(space):
        return tuple(_shown(part, one, size) for part, one in zip(space.spaces, observation, strict=True))
    if not _is_large(space, size):
        return observation
    image = np.asarray(observation)
    if image.shape != space.shape or image.dtype.kind not in "biuf":
        return observation
    return shrunk(as_whole(image, str(space.dtype)), size)
