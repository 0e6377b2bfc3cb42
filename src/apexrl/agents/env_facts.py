"""What defaults may depend on: facts of an environment, and never its name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from apexrl.image_shapes import shrunk_shape, sides_of
from apexrl.spec import ACTION_MASK, PRESENT, EnvSpec, Field

_LARGEST_CODE = 64  # ours; MiniGrid's are at most 10
SMALL_IMAGE_SIDE = 36  # pixels; smaller images are encoded by small convolutions (networks.encoders)


def byte_fields(spec: EnvSpec) -> tuple[str, ...]:
    """Names of images and vectors of bytes, which encoders divide by 255; texts, categories and masks are none."""
    return tuple(
        name
        for name, field in spec.observation.items()
        if field.dtype == "uint8"
        and name not in (ACTION_MASK, PRESENT)
        and name not in spec.categories
        and not spec.varies(name)
    )


class EnvFacts(NamedTuple):
    """What is known of an environment before a run."""

    spec: EnvSpec
    """Its observations and actions."""
    time_limit: int | None = None
    """Environment steps after which an episode is cut; None: no limit is known."""
    step_seconds: float | None = None
    """Seconds of one step with random actions, resets included; None: not measured."""
    largest_byte: int = 0
    """Of all images and vectors of bytes in random steps; 0: not looked at, or all are 0."""
    shrinks: bool = False
    """Defaults may shrink its images: nobody has said how large they are to be, and the environment can be wrapped."""

    @property
    def image_side(self) -> int:
        """Pixels of the shorter side of the largest image in an observation; 0: there are vectors alone.

        Three dimensions are an image, as are two of uint8 (``EnvSpec.is_image``).
        """
        images = [self.spec.each_sees(name).shape for name in self.spec.observation if self.spec.is_image(name)]
        return max((sorted(shape)[-2] for shape in images), default=0)

    @property
    def longest_image_side(self) -> int:
        """Pixels of the longest side of all images in an observation; 0: there are vectors alone."""
        return max((max(sides_of(field.shape)) for field in self._pictures().values()), default=0)

    def shrunk(self, size: int) -> EnvFacts:
        """The same where images have sides of at most ``size`` pixels. Of an environment of one agent."""
        small = {
            name: replace(field, shape=shrunk_shape(field.shape, size)) for name, field in self._pictures().items()
        }
        return self._replace(spec=replace(self.spec, observation={**self.spec.observation, **small}), shrinks=False)

    def _pictures(self) -> dict[str, Field]:
        """Images that can be shrunk: bits, as of MultiBinary, have no averages."""
        fields = self.spec.observation.items()
        return {
            name: field for name, field in fields if self.spec.is_image(name) and field.dtype not in ("int8", "bool")
        }

    @property
    def small_image(self) -> bool:
        """Whether there is an image, and none of ``SMALL_IMAGE_SIDE`` pixels."""
        return 0 < self.image_side < SMALL_IMAGE_SIDE

    @property
    def shows_small_bytes(self) -> bool:
        """Whether there are images or vectors of bytes, and no large image."""
        return self.image_side < SMALL_IMAGE_SIDE and bool(byte_fields(self.spec))

    @property
    def codes_bound(self) -> int:
        """The least power of 2 that no byte exceeded, where these seem to be codes, as of objects, and no brightness:
        it is at most 64, and no image is large. 0: they do not."""
        if not self.shows_small_bytes or not 0 < self.largest_byte <= _LARGEST_CODE:
            return 0
        return 1 << (self.largest_byte - 1).bit_length()

    @property
    def several_agents(self) -> bool:
        """Whether it is one of several agents that act at the same time."""
        return bool(self.spec.agents) or self.spec.of_team

    @property
    def categorical(self) -> bool:
        """Whether an observation is nothing but categories: ``Discrete``, ``MultiDiscrete``, or a tuple of them."""
        shown = self.spec.without_mask()
        fields = shown.observation.items()
        plain = (name in shown.categories and len(field.shape) < 2 and not shown.varies(name) for name, field in fields)
        return all(plain)

    @property
    def observation_nbytes(self) -> int:
        """Bytes of one observation without stacked frames, of which a replay keeps one a step."""
        return sum(field.nbytes for field in self.spec.observation.values())

    @property
    def action_words(self) -> str:
        """Its actions, for a message: ``4 discrete actions``."""
        action = self.spec.action
        if not action.box:
            return action.words
        numbers = math.prod(action.shape)
        return f"actions of {numbers} number{'s' if numbers != 1 else ''}"
