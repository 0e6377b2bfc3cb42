"""Settings for environments with box actions."""

from __future__ import annotations

from apexrl.presets.known import Preset

CONTINUOUS: dict[str, Preset] = {}
