"""How settings without a preset scale observations, returns and pixels, for all families of agents."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

SCALED: Settings = {
    "normalize_observations": True,
    "normalize_returns": True,
}
SCALED_IMAGES = SCALED  # pixels are divided by 255 as they are; vectors beside an image are normalised
FAST_IMAGES = SCALED_IMAGES | {"precision": "auto"}
CATEGORIES: Settings = {"v_min": -5.0, "v_max": 5.0}  # scaled returns are of size 1
