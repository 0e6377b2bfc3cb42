"""Targets and losses: pure functions on tensors that check shapes and dtypes first. Each cites its source."""

from __future__ import annotations

from apexrl.losses.actor_critic import (
    Advantages,
    clipped_surrogate,
    clipped_value_loss,
    gae,
    gradient_surrogate,
    normalized_advantage,
    unexplained,
    value_loss,
    vtrace,
)
from apexrl.losses.distributional import (
    categorical_divergence,
    categorical_projection,
    quantile_gradient,
    quantile_loss,
    sorted_quantile_loss,
)
from apexrl.losses.recurrent import (
    rescale,
    sequence_lambda_target,
    sequence_loss,
    sequence_priority,
    sequence_target,
    unscale,
)
from apexrl.losses.soft import (
    critics_loss,
    policy_loss,
    soft_categorical_target,
    soft_target,
    soft_value,
    temperature_loss,
    truncated_target,
)
from apexrl.losses.values import (
    huber_loss,
    lambda_return,
    munchausen_reward,
    munchausen_value,
    n_step_return,
    taken,
    td_error,
    td_gradient,
    td_loss,
)

__all__ = [
    "Advantages",
    "categorical_divergence",
    "categorical_projection",
    "clipped_surrogate",
    "clipped_value_loss",
    "critics_loss",
    "gae",
    "gradient_surrogate",
    "huber_loss",
    "lambda_return",
    "munchausen_reward",
    "munchausen_value",
    "n_step_return",
    "normalized_advantage",
    "policy_loss",
    "quantile_gradient",
    "quantile_loss",
    "rescale",
    "sequence_lambda_target",
    "sequence_loss",
    "sequence_priority",
    "sequence_target",
    "soft_categorical_target",
    "soft_target",
    "soft_value",
    "sorted_quantile_loss",
    "taken",
    "td_error",
    "td_gradient",
    "td_loss",
    "temperature_loss",
    "truncated_target",
    "unexplained",
    "unscale",
    "value_loss",
    "vtrace",
]
