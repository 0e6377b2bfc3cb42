"""Images that are shrunk: ``--image-size``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import apexrl
from apexrl import compare
from apexrl.agents.default_settings import default_image_size
from apexrl.agents.env_facts import EnvFacts
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.envs import env_spec, env_spec_and_limit, make_env
from apexrl.envs.shrunk_images import ShrunkImages, shrunk
from apexrl.errors import ConfigError, SpecError
from apexrl.image_shapes import shrunk_shape
from apexrl.presets import unseen
from apexrl.topologies.validation import validate


class Camera(gym.Env[Any, Any]):
    """Shows a large picture beside two numbers. The action that names the brighter half is right."""

    def __init__(self, height: int = 150, width: int = 200) -> None:
        picture = gym.spaces.Box(0, 255, (height, width, 3), np.uint8)
        speed = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = gym.spaces.Dict({"camera": picture, "more": gym.spaces.Tuple([speed, picture])})
        self.action_space = gym.spaces.Discrete(2)
        self._bright = self._steps = 0

    def _seen(self) -> dict[str, Any]:
        shape = self.observation_space["camera"].shape  # type: ignore[index]
        picture = self.np_random.integers(0, 120, shape, dtype=np.uint8)
        half = picture.shape[1] // 2
        picture[:, half * self._bright : half * (self._bright + 1)] += 120
        return {"camera": picture, "more": (np.zeros(2, np.float32), 255 - picture)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._bright, self._steps = int(self.np_random.integers(2)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right, self._steps = float(action == self._bright), self._steps + 1
        self._bright = int(self.np_random.integers(2))
        return self._seen(), right, self._steps == 8, False, {}


gym.register("Camera-v0", Camera)
CAMERA = f"{__name__}:Camera-v0"


@given(
    st.tuples(st.integers(5, 90), st.integers(5, 90)),
    st.integers(5, 60),
    st.sampled_from([(), (1,), (3,)]),
    st.integers(0, 1000),
)
def test_each_pixel_is_the_average_of_its_area(
    sides: tuple[int, int], size: int, channels: tuple[int, ...], seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*sides, *channels), dtype=np.uint8)
    small = shrunk(image, size)
    assert small.dtype == np.uint8
    assert small.shape == shrunk_shape(image.shape, size) == (min(sides[0], size), min(sides[1], size), *channels)
    import cv2

    wanted = cv2.resize(image, small.shape[1::-1], interpolation=cv2.INTER_AREA).reshape(small.shape)
    np.testing.assert_allclose(small.astype(int), wanted.astype(int), atol=1)


def test_channels_may_be_first_and_images_many() -> None:
    images = np.random.default_rng(0).random((4, 3, 40, 50), np.float32)
    small = shrunk(images, 20, ndim=3)
    assert small.shape == (4, 3, 20, 20)
    assert small.dtype == np.float32
    for image, one in zip(images, small, strict=True):
        last = shrunk(np.ascontiguousarray(image.transpose(1, 2, 0)), 20)
        np.testing.assert_allclose(one.transpose(1, 2, 0), last, rtol=1e-5)
        blocks = shrunk(np.ascontiguousarray(image[:, :, :40]), 20)
        np.testing.assert_allclose(blocks, image[:, :, :40].reshape(3, 20, 2, 20, 2).mean((2, 4)), rtol=1e-5)


def test_every_image_of_an_observation_is_shrunk() -> None:
    config = EnvConfig(env=CAMERA, image_size=84)
    spec, _ = env_spec_and_limit(config)
    shapes = {name: field.shape for name, field in spec.observation.items()}
    assert shapes == {
        "observation/camera": (84, 84, 3),
        "observation/more/0": (2,),
        "observation/more/1": (84, 84, 3),
    }
    env = make_env(config)
    seen, _ = env.reset(seed=1)
    assert env.observation_space.contains(seen)
    plain, _ = Camera().reset(seed=1)
    assert plain["camera"].shape == (150, 200, 3)
    assert env.step(0)[0]["camera"].shape == (84, 84, 3)
    np.testing.assert_allclose(seen["camera"].astype(int) + seen["more"][1], 255, atol=1)


def test_whole_numbers_in_floats_are_rounded_and_what_does_not_fit_is_passed_on() -> None:
    env = make_env(EnvConfig(env=CAMERA, image_size=84))
    shown = env.get_wrapper_attr("observation")
    seen, _ = Camera().reset(seed=1)
    floats = shown({**seen, "camera": seen["camera"].astype(np.float64)})["camera"]
    np.testing.assert_array_equal(floats, shown(seen)["camera"])
    fractions = shown({**seen, "camera": seen["camera"] / 255.0})["camera"]
    assert fractions.dtype == np.float64
    assert 0.0 < fractions.mean() < 1.0
    odd = {"camera": seen["camera"][:5], "other": 1, "more": (1,)}
    assert shown(odd).keys() == odd.keys()
    assert shown(odd)["camera"].shape == (5, 200, 3)
    assert shown(odd)["more"] == (1,)


@pytest.mark.parametrize(("size", "shape"), [(4, (150, 200, 3)), (8, (84, 84, 12)), (12, (12, 84, 84))])
def test_sizes_that_leave_no_image_are_refused(size: int, shape: tuple[int, ...]) -> None:
    class Odd(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        action_space = gym.spaces.Discrete(2)

    with pytest.raises(ConfigError, match=rf"--image-size {size} leaves no image of one of {shape[0]} × "):
        ShrunkImages(Odd(), size)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int32", "uint64", "int64"])
def test_the_greatest_numbers_stay_great(dtype: str) -> None:
    for end in (np.iinfo(dtype).min, np.iinfo(dtype).max):
        small = shrunk(np.full((50, 70, 1), end, dtype), 20)
        np.testing.assert_allclose(small.astype(np.float64), float(end), rtol=1e-15)


def test_bits_are_no_picture() -> None:
    mask = gym.spaces.Box(0, 1, (200, 200, 1), np.bool_)

    class Masked(gym.Env[Any, Any]):
        observation_space = gym.spaces.Dict({"mask": mask, "seen": gym.spaces.Box(0, 255, (200, 200, 3), np.uint8)})

    shapes = {name: space.shape for name, space in ShrunkImages(Masked(), 84).observation_space.items()}  # type: ignore[attr-defined]
    assert shapes == {"mask": (200, 200, 1), "seen": (84, 84, 3)}
    facts = EnvFacts(env_spec(gym.spaces.MultiBinary((200, 200, 3)), gym.spaces.Discrete(2)), shrinks=True)
    assert facts.image_side == 200
    assert default_image_size(facts) == 0


def test_another_agent_and_a_comparison_keep_the_size() -> None:
    look = override(Config(), {"env": CAMERA, "serial": True})
    for words, size in ([], 84), (["image_size"], 0):
        given = {"serial": True} | dict.fromkeys(words, 0)
        config = override(unseen.start(look, "ppo", "", "default", words).config, {"env": CAMERA, "serial": True})
        other = unseen.switched(config, "dqn", "apex")
        alone = unseen.start(look, "dqn", "", "default", words).config
        assert (other.env.image_size, other.replay.capacity) == (size, alone.replay.capacity)
        plan = compare.plan(CAMERA, ["apex"], ["dqn"], env_steps=1000, look=partial(override, values=given))
        assert (plan.config.env.image_size, plan.config.replay.capacity) == (size, alone.replay.capacity)


def test_defaults_shrink_what_is_large_and_say_so() -> None:
    look = override(Config(), {"env": CAMERA, "serial": True})
    start = unseen.start(look, "auto", "", "default")
    assert start.config.env.image_size == 84
    assert "sides of images that have more than 84 pixels are shrunk to 84. --image-size 0 leaves" in start.said
    kept = unseen.start(look, "auto", "", "default", ["image_size"])
    assert kept.config.env.image_size == 0
    small = override(look, {"env_kwargs": {"height": 100, "width": 128}})
    assert unseen.start(small, "dqn", "", "default").config.env.image_size == 0
    assert unseen.start(look, "dqn", "", "paper").config.env.image_size == 0
    assert unseen.start(look, "bc", "offline", "default").config.env.image_size == 0


def test_a_replay_of_shrunk_images_has_room_for_more() -> None:
    look = override(Config(), {"env": CAMERA, "serial": True})
    shrinks, kept = (unseen.start(look, "dqn", "", "default", given).config for given in ([], ["image_size"]))
    assert shrinks.replay.capacity > 2 * kept.replay.capacity


def test_a_run_learns_from_them_and_its_agent_takes_both_sizes(tmp_path: Path) -> None:
    run = apexrl.train(
        env=CAMERA, agent="ppo", topology="impala", out=str(tmp_path), name="camera", serial=True, env_steps=96,
        image_size=48, actors=1, envs_per_actor=4, unroll_length=8, batch_size=4, epochs=1, minibatches=1,
        eval_episodes=1, eval_envs=1, image_units=16, checkpoint_seconds=1000.0,
    )  # fmt: skip
    assert run.summary["updates"] > 0
    agent = apexrl.load(run.path, trust=[__name__])
    seen, _ = Camera().reset(seed=3)
    small, _ = make_env(EnvConfig(env=CAMERA, image_size=48)).reset(seed=3)
    assert small["camera"].shape == (48, 48, 3)
    assert agent.act(seen) in (0, 1)
    named = agent._named(seen)[0]["observation/camera"]
    np.testing.assert_array_equal(named[0], shrunk(seen["camera"], 48))
    batch = {"camera": np.stack([seen["camera"]] * 3), "more": (np.zeros((3, 2)), np.stack([small["camera"]] * 3))}
    assert agent.act(batch).shape == (3,)
    floats = agent._named({**seen, "camera": seen["camera"].astype(np.float64)})[0]["observation/camera"]
    np.testing.assert_array_equal(floats, named)
    with pytest.raises(SpecError, match=r"observation/camera has shape \(40, 40, 3\)"):
        agent.act({**seen, "camera": seen["camera"][:40, :40]})


def test_where_images_cannot_be_shrunk() -> None:
    with pytest.raises(ConfigError, match="--image-size is for an environment of one agent"):
        validate(override(Config(), {"env": "apexrl.envs.board_games:env", "image_size": 84}))
