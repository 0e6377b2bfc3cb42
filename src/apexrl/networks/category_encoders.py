"""Many categories at once, such as the glyphs of a text game or the kinds of cells of a grid, as embeddings."""

from __future__ import annotations

import math

from torch import Tensor, nn

from apexrl.image_shapes import SHORTEST_IMAGE_SIDE
from apexrl.spec import Field

EMBEDDED = 16  # numbers of a cell's category (ours; NLE's baseline has 32)
MOST_ONE_HOT = 4096  # numbers of a one-hot array; larger ones are embedded
MOST_OF_ONE = 1 << 14  # categories of a single number that is one-hot; more are embedded


def is_map(field: Field, categories: int) -> bool:
    """Whether categories lie in two or three dimensions, of which the first two are large enough for convolutions."""
    shape = field.shape
    return categories > 0 and len(shape) in (2, 3) and min(shape[:2]) >= SHORTEST_IMAGE_SIDE


def too_many(field: Field, categories: int) -> bool:
    """Whether categories of a vector are too many for one-hot inputs."""
    return categories * math.prod(field.shape) > (MOST_ONE_HOT if field.shape else MOST_OF_ONE)


class CellEmbedding(nn.Module):
    """Categories as ``EMBEDDED`` channels of each of their places: [B, (stack,) H, W(, C)] -> [B, channels, H, W].

    Args:
        field: one frame.
        stack: frames seen at once.
        categories: number of values.
    """

    def __init__(self, field: Field, stack: int, categories: int) -> None:
        super().__init__()
        self.table = nn.Embedding(categories, EMBEDDED)
        self._layers = math.prod(field.shape[2:])
        self.shape = stack * self._layers * EMBEDDED, *field.shape[:2]
        self._stack = stack

    def forward(self, observation: Tensor) -> Tensor:
        _, height, width = self.shape
        cells = observation.reshape(-1, self._stack, height, width, self._layers)
        embedded = self.table(cells.long())  # [B, stack, H, W, C, E]
        image: Tensor = embedded.permute(0, 1, 4, 5, 2, 3).reshape(-1, *self.shape)
        return image
