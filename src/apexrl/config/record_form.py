"""The configuration as hosts read it: also those of the release before this one."""

from __future__ import annotations

import tomllib
from typing import Any, Final

from apexrl.config import convert
from apexrl.config.schema import Config

NEW_SETTINGS: Final = frozenset(
    (
        "weights_precision", "compress_images", "team", "mixer", "mixing_units", "target_acts", "encoder_width",
        "byte_maximum", "policies", "gamma_least", "show_last_action", "noise_period", "initial_std",
        "least_std", "eval_period_steps", "schedule_env_steps", "initial_weights", "image_size",
    )
)  # fmt: skip
"""Settings that the release before does not know, or of which it does not know the default value. Its hosts get them
only where they have another value than by default; they then refuse the run."""


def for_hosts(config: Config) -> str:
    """``config`` as TOML, without new settings that have their default values."""
    import tomli_w

    table, default = (tomllib.loads(convert.to_toml(one)) for one in (config, Config()))
    return tomli_w.dumps(_without(table, default))


def _without(table: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict) and name in default and isinstance(default[name], dict):
            kept[name] = _without(value, default[name])
        elif name not in NEW_SETTINGS or name not in default or value != default[name]:
            kept[name] = value
    return kept
