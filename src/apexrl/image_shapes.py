"""Which shapes are images, and which of their ends are channels."""

from __future__ import annotations

SHORTEST_IMAGE_SIDE = 5
"""In pixels; what has a shorter side, as tic-tac-toe's board, is no image."""


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image is ``[H, W, C]``, and not ``[H, W]`` or ``[C, H, W]``: C is taken to be the smaller end, or
    the last."""
    return len(shape) == 3 and shape[-1] <= shape[0]


def sides_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of an image, in pixels."""
    height, width = shape[:2] if len(shape) == 2 or channels_last(shape) else shape[1:]
    return height, width


def is_image(shape: tuple[int, ...], dtype: str) -> bool:
    """Whether values are encoded by convolutions: of three dimensions, or two of uint8, and no side too short."""
    shaped = len(shape) == 3 or (len(shape) == 2 and dtype == "uint8")
    return shaped and min(sides_of(shape)) >= SHORTEST_IMAGE_SIDE


def shrunk_shape(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """That of an image whose longer sides were shrunk to ``size`` pixels."""
    height, width = (min(side, size) for side in sides_of(shape))
    if len(shape) == 2:
        return height, width
    return (height, width, shape[2]) if channels_last(shape) else (shape[0], height, width)
