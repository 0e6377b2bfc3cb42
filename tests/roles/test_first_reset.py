"""What a run says of its environments after their first reset."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import Config, EnvConfig
from apexrl.roles.role_envs import first_reset, role_envs


class Masked(gym.Env[Any, Any]):
    """Tells a mask in its info."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {"action_mask": np.ones(2, np.int8)}


class Vector(gym.vector.SyncVectorEnv):
    """The same in its own vectorised form."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([Masked] * num_envs)


gym.register("MaskedVector-v0", vector_entry_point=Vector)


@pytest.mark.parametrize("env", [Masked, "MaskedVector-v0"])
@pytest.mark.parametrize("read", [False, True])
def test_a_mask_that_nobody_reads_is_told(env: Any, read: bool, stage: Any) -> None:
    config = Config(env=EnvConfig(env=env, mask_in_info=read))
    context = stage.context("actor")
    made = role_envs(context, config, 2, 1, 1)
    try:
        assert first_reset(context, made)["observation/obs" if read else "observation"].shape == (2, 2)
    finally:
        made.close()
    told = [(values["once"], values["text"]) for values in stage.values("log") if "once" in values]
    assert len(told) == (not read)
    for once, text in told:
        assert once == "masks"
        assert "--mask-in-info" in text
