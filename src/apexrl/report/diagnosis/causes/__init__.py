"""The causes that ``apexrl doctor`` knows, one module for each concern."""

from collections.abc import Callable

from apexrl.report.diagnosis.causes import (
    discount,
    episode_ends,
    exploration_level,
    replay_use,
    scales,
    stale_data,
    step_size,
)
from apexrl.report.diagnosis.finding import Cause
from apexrl.report.diagnosis.recorded_run import RunRecord

CAUSES: tuple[Callable[[RunRecord], Cause | None], ...] = (
    step_size.learning_rate_large,
    step_size.learning_rate_small,
    step_size.gradient_clip_small,
    discount.gamma_small,
    discount.gamma_large,
    scales.rewards_large,
    scales.rewards_small,
    scales.observations_large,
    scales.observations_small,
    scales.support_narrow,
    episode_ends.ends_at_once,
    episode_ends.ends_never,
    episode_ends.limit_as_end,
    episode_ends.returns_alike,
    exploration_level.exploration_none,
    exploration_level.entropy_large,
    exploration_level.entropy_lost,
    exploration_level.deviation_lost,
    replay_use.replay_small,
    replay_use.updates_few,
    replay_use.target_rare,
    stale_data.policy_lag_large,
    stale_data.values_too_high,
    stale_data.weights_uneven,
)
