"""The pictures of a run folder: learning curve, auto-tuning, policy lag."""

from __future__ import annotations

from collections.abc import Sequence

from apexrl.config import Config
from apexrl.launch.contained_observers import contained, tell
from apexrl.report import curves
from apexrl.report.plain_lines import title
from apexrl.run.folder import RunFolder
from apexrl.run.status import Observer


def draw_all(folder: RunFolder, config: Config, observers: Sequence[Observer]) -> None:
    """Draw every picture. One that fails is reported as a warning: the run's own result stands."""
    for draw, path in ((draw_curve, folder.curve_path), (draw_lag, folder.lag_path)):
        try:
            draw(folder, config)
        except Exception as error:
            tell(contained(observers), f"{path} could not be drawn: {type(error).__name__}: {error}", "warning")


def draw_curve(folder: RunFolder, config: Config) -> bool:
    """Draw ``learning_curve.png``, and ``autotune.png`` of a tuned run; False: nothing was logged yet."""
    above = title(config)
    drawn = curves.learning_curve(folder.metrics_path, folder.curve_path, above, config.stop.stop_at_return)
    curves.tuning_picture(folder.metrics_path, folder.autotune_path, above)
    return drawn


def draw_lag(folder: RunFolder, config: Config) -> bool:
    """Draw ``policy_lag.png``; False: nothing was learned yet."""
    known = folder.summary().get("policy_lag") or {}
    above = f"Policy lag  ·  {title(config)}"
    return curves.policy_lag(folder.metrics_path, folder.lag_path, above, known, config.learner.max_policy_lag)
