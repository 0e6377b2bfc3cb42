"""Environments: Gymnasium's, made, vectorised and described in plain arrays."""

from __future__ import annotations

from apexrl.envs.action_masks import ActionMasks
from apexrl.envs.frame_stack import FrameStack
from apexrl.envs.last_action_reward import LastActionReward
from apexrl.envs.make import env_name, env_spec_and_limit, make_env, make_vector
from apexrl.envs.spaces import env_spec, flatten_observation
from apexrl.envs.vector import Episode, Stepped, VectorEnv

__all__ = [
    "ActionMasks",
    "Episode",
    "FrameStack",
    "LastActionReward",
    "Stepped",
    "VectorEnv",
    "env_name",
    "env_spec",
    "env_spec_and_limit",
    "flatten_observation",
    "make_env",
    "make_vector",
]
