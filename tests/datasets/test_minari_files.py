"""Datasets in Minari's files: read back as they were written, by Minari too; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from corridor_data import CORRIDOR, corridor_episodes, write_corridor

from apexrl.datasets.episode import Episode
from apexrl.datasets.minari_files import Dataset, write
from apexrl.envs import env_spec
from apexrl.envs.spaces import flatten_observation, observation_leaves
from apexrl.errors import DatasetError
from apexrl.space_values import LengthLimit


def same(one: Episode, two: Episode) -> bool:
    alike = [np.array_equal(one.observation[name], two.observation[name]) for name in one.observation]
    rest = [np.array_equal(a, b) for a, b in zip(one[1:], two[1:], strict=True)]
    return one.observation.keys() == two.observation.keys() and all((*alike, *rest))


def test_what_is_written_is_read_back_and_read_by_minari(tmp_path: Path) -> None:
    import minari

    episodes = corridor_episodes(5, limit=4)
    assert {bool(one.truncated[-1]) for one in episodes} == {True, False}
    where = write_corridor(tmp_path / "new", episodes, author=["nobody"])
    dataset = Dataset(str(where))
    assert (dataset.episodes, dataset.steps) == (5, sum(one.steps for one in episodes))
    assert dataset.env == "Corridor-v0"
    assert all(same(one, two) for one, two in zip(dataset, episodes, strict=True))
    theirs = minari.MinariDataset(where / "data")
    assert theirs.id == "corridor/test-v0"
    assert theirs.total_steps == dataset.steps
    for mine, other in zip(episodes, theirs, strict=True):
        np.testing.assert_array_equal(mine.observation["observation"], other.observations)
        np.testing.assert_array_equal(mine.action, other.actions)
        np.testing.assert_array_equal(mine.terminated, other.terminations)
    assert not list(tmp_path.glob(".*"))


def test_a_relative_folder_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_corridor(Path("here"), corridor_episodes(2))
    assert Dataset("here").episodes == 2


def test_a_dataset_of_minari_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_corridor(tmp_path / "corridor" / "test-v0", corridor_episodes(2))
    assert Dataset("corridor/test-v0").episodes == 2
    with pytest.raises(DatasetError, match=r"there is no dataset corridor/other-v0.*minari download corridor/other-v0"):
        Dataset("corridor/other-v0")


def test_nested_observations_images_and_choices_that_begin_elsewhere(tmp_path: Path) -> None:
    space = gym.spaces.Dict(
        eye=gym.spaces.Box(0, 255, (4, 4, 3), np.uint8),
        body=gym.spaces.Tuple((gym.spaces.Box(-1.0, 1.0, (2,), np.float64), gym.spaces.Discrete(3, start=5))),
    )
    actions, rng = gym.spaces.Discrete(4, start=-2), np.random.default_rng(0)
    episode = Episode(
        {
            "observation/eye": rng.integers(0, 256, (4, 4, 4, 3)).astype(np.uint8),
            "observation/body/0": rng.random((4, 2), np.float32),
            "observation/body/1": np.array([0, 1, 2, 0]),
        },
        np.array([0, 3, 1]),
        rng.random(3, np.float32),
        np.array([False, False, True]),
        np.zeros(3, np.bool_),
    )
    write(tmp_path / "d", "a/b-v0", [episode], space, actions)
    (found,) = Dataset(str(tmp_path / "d"))
    assert same(found, episode)  # images without loss, too
    Dataset(str(tmp_path / "d")).check_fits(env_spec(space, actions))
    with pytest.raises(
        DatasetError, match=r"does not fit the environment: it has .*actions 4, and the environment .*2"
    ):
        Dataset(str(tmp_path / "d")).check_fits(env_spec(space, gym.spaces.Discrete(2)))


def an_episode(observation: dict[str, Any], action: Any) -> Episode:
    """Of two steps, the last of which ends it."""
    ends = np.array([False, True])
    return Episode(observation, action, np.array([0.5, 1.0], np.float32), ends, np.zeros(2, np.bool_))


class Mission(gym.Space[str]):
    """A space of one's own, as MiniGrid's."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "go to the door"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def test_texts_are_kept_and_read_by_minari(tmp_path: Path) -> None:
    import minari

    space = gym.spaces.Dict(said=gym.spaces.Text(6, charset="abü"), mission=Mission())
    told = {"said": ["", "abü", "üüüüüü"], "mission": ["go to the door", "", "find it"]}
    leaves = observation_leaves(space, LengthLimit(20))
    episode = an_episode(flatten_observation(leaves, told), np.array([1, 0]))
    assert episode.observation["observation/said/length"].tolist() == [0, 4, 12]
    where = tmp_path / "d"
    write(where, "a/b-v0", [episode], space, gym.spaces.Discrete(2), limit=LengthLimit(20))
    dataset = Dataset(str(where))
    (found,) = dataset
    assert same(found, episode)
    dataset.check_fits(env_spec(space, gym.spaces.Discrete(2), limit=LengthLimit(20)))
    (theirs,) = minari.MinariDataset(where / "data")
    assert theirs.observations == told


def test_keys_with_slashes_become_groups(tmp_path: Path) -> None:
    box = gym.spaces.Box(-1.0, 1.0, (2,))
    space = gym.spaces.Dict({"walker/joints/left": box, "walker/height": gym.spaces.Discrete(3, start=1), "touch": box})
    shown = {"walker/joints/left": np.ones((3, 2), np.float32), "walker/height": np.array([0, 2, 1])}
    shown |= {"touch": np.zeros((3, 2), np.float32)}
    episode = an_episode({f"observation/{key}": value for key, value in shown.items()}, np.array([1, 0]))
    write(tmp_path / "d", "a/b-v0", [episode], space, gym.spaces.Discrete(2))
    (found,) = Dataset(str(tmp_path / "d"))
    assert same(found, episode)
    with pytest.raises(DatasetError, match=r"the key 'walker' of .* begins another key"):
        clash = gym.spaces.Dict({"walker": box, "walker/height": box})
        write(tmp_path / "clash", "a/b-v0", [], clash, gym.spaces.Discrete(2))


def test_actions_of_several_kinds(tmp_path: Path) -> None:
    import minari

    shown = gym.spaces.Discrete(2)
    how = gym.spaces.Dict(far=gym.spaces.Box(-1.0, 1.0, (1, 2), np.float64), sides=gym.spaces.MultiBinary(2))
    space = gym.spaces.Tuple((how, gym.spaces.Discrete(3, start=-5)))
    actions = np.array([[1, 0, 2, 0.5, -0.25], [0, 1, 0, 1.0, 0.0]], np.float32)
    episode = an_episode({"observation": np.array([0, 1, 0])}, actions)
    where = tmp_path / "d"
    write(where, "a/b-v0", [episode], shown, space)
    dataset = Dataset(str(where))
    (found,) = dataset
    assert same(found, episode)
    (theirs,) = minari.MinariDataset(where / "data")
    assert theirs.actions[1].tolist() == [-3, -5]
    assert theirs.actions[0]["far"].shape == (2, 1, 2)
    dataset.check_fits(env_spec(shown, space))
    with pytest.raises(DatasetError, match=r"actions 2×2×3, 0/far, .* and the environment .*actions 3"):
        dataset.check_fits(env_spec(shown, gym.spaces.Discrete(3)))
    with pytest.raises(DatasetError, match=r"action \[.*\] of step 0 is none of the environment's"):
        write(tmp_path / "e", "a/b-v0", [episode._replace(action=actions + np.float32(1.0))], shown, space)
    with pytest.raises(DatasetError, match="keys of actions must be without '/'"):
        write(tmp_path / "e", "a/b-v0", [], shown, gym.spaces.Dict({"a/b": how}))


def test_numbers_of_several_boxes_keep_their_order(tmp_path: Path) -> None:
    """Minari reads the keys of a Dict sorted."""
    box = gym.spaces.Box(-1.0, 1.0, (2,))
    space = gym.spaces.Dict(right=box, left=gym.spaces.Tuple([gym.spaces.Dict(y=box, x=box)]))
    assert list(space.spaces) == ["right", "left"]
    episode = an_episode({"observation": np.array([0, 1, 0])}, np.arange(12, dtype=np.float32).reshape(2, 6) / 12)
    write(tmp_path / "d", "a/b-v0", [episode], gym.spaces.Discrete(2), space)
    dataset = Dataset(str(tmp_path / "d"))
    dataset.check_fits(env_spec(gym.spaces.Discrete(2), space))
    (found,) = dataset
    assert same(found, episode)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (gym.spaces.Sequence(gym.spaces.Discrete(2)), "sequence"),
        (gym.spaces.Graph(gym.spaces.Discrete(2), None), "graph"),
    ],
)
def test_what_minari_has_no_space_of_is_refused(space: Any, kind: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"observation is a {kind}, which Minari's files do not hold"):
        write(tmp_path / "d", "a/b-v0", [], space, gym.spaces.Discrete(2))


def test_an_episode_that_stops_in_the_middle_is_truncated() -> None:
    from apexrl.datasets.episode import checked

    env = gym.make(CORRIDOR)
    spec = env_spec(env.observation_space, env.action_space)
    (episode,) = corridor_episodes(1)
    cut = episode._replace(terminated=np.zeros_like(episode.terminated), truncated=np.zeros_like(episode.truncated))
    found = checked(cut, spec, "here")
    assert found.truncated.tolist() == [False] * (episode.steps - 1) + [True]
    assert not cut.truncated.any()
    assert not checked(episode, spec, "here").truncated[-1]


def _nan(one: Episode) -> Episode:
    return one._replace(reward=np.full_like(one.reward, np.nan))


def _short(one: Episode) -> Episode:
    return one._replace(observation={"observation": one.observation["observation"][:-1]})


def _none(one: Episode) -> Episode:
    return one._replace(action=np.full_like(one.action, 2))


def _unknown(one: Episode) -> Episode:
    return one._replace(observation={"observation": one.observation["observation"] + 99})


def _column(one: Episode) -> Episode:
    return one._replace(reward=one.reward[:, None])


def _early(one: Episode) -> Episode:
    return one._replace(terminated=np.ones_like(one.terminated))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_nan, r"episode 0 of .*: reward of step 0 is NaN or infinite"),
        (_short, r"has shape \(\d+,\), not \(\d+,\): an observation for every one"),
        (_none, r"action 2 of step 0 is none of the environment's"),
        (_unknown, r"observation of step 0 holds \d+, and its space 0 to \d"),
        (_column, r"rewards have shape \(\d+, 1\), not \(\d+,\): one number for each step"),
        (_early, r"ends at step 0 of \d+ and goes on"),
    ],
)
def test_what_cannot_be_learned_from_is_not_written(spoil: Any, message: str, tmp_path: Path) -> None:
    episode = next(one for one in corridor_episodes(9) if one.steps > 2)
    with pytest.raises(DatasetError, match=message):
        write_corridor(tmp_path / "new", [spoil(episode)])
    assert not list(tmp_path.iterdir())


def test_broken_and_missing_files_are_refused(tmp_path: Path) -> None:
    where = write_corridor(tmp_path / "new", corridor_episodes(2))
    with pytest.raises(DatasetError, match="is there already"):
        write_corridor(where, corridor_episodes(2))
    with pytest.raises(DatasetError, match="there is no whole episode"):
        write_corridor(tmp_path / "none", [])
    with pytest.raises(DatasetError, match=r"there is no dataset at .*absent"):
        Dataset(str(tmp_path / "absent"))
    with pytest.raises(DatasetError, match="is no Minari dataset"):
        Dataset(str(tmp_path))
    about = where / "data" / "metadata.json"
    text = json.loads(about.read_text())
    about.write_text(json.dumps({**text, "total_episodes": 0}))
    with pytest.raises(DatasetError, match="is empty: it has 0 episodes"):
        Dataset(str(where))
    about.write_text(json.dumps({name: value for name, value in text.items() if name != "action_space"}))
    with pytest.raises(DatasetError, match="has no action_space"):
        Dataset(str(where))
    about.write_text("[]")
    with pytest.raises(DatasetError, match="holds no JSON object"):
        Dataset(str(where))
    about.write_text(json.dumps(text))
    data = where / "data" / "main_data.hdf5"
    data.write_bytes(data.read_bytes()[:500])
    with pytest.raises(DatasetError, match="episode 0 cannot be read"):
        list(Dataset(str(where)))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("observations", "episode 1 has 'observation' of float64 values that int64 does not hold"),
        ("actions", r"episode 1 has action \d.5 of step 0, which is no whole number, and actions are choices"),
    ],
)
def test_values_that_their_dtype_does_not_hold_are_refused(entry: str, message: str, tmp_path: Path) -> None:
    import h5py

    where = write_corridor(tmp_path / "d", corridor_episodes(2))
    with h5py.File(where / "data" / "main_data.hdf5", "a") as file:
        kept = file["episode_1"]
        values = kept[entry][:] + 0.5
        del kept[entry]
        kept[entry] = values
    with pytest.raises(DatasetError, match=message):
        list(Dataset(str(where)))


def test_masks_say_what_may_have_been_done() -> None:
    from apexrl.datasets.episode import checked

    space = gym.spaces.Dict(obs=gym.spaces.Discrete(2), action_mask=gym.spaces.MultiBinary(5))
    spec = env_spec(space, gym.spaces.MultiDiscrete([2, 3]))
    mask = np.array([[1, 0, 1, 0, 1], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0]], np.bool_)
    ends = np.array([False, True])
    fine = Episode(
        {"observation/obs": np.zeros(3, np.int64), "observation/action_mask": mask},
        np.array([[0, 2], [1, 2]]), np.ones(2, np.float32), ends, np.zeros(2, np.bool_),
    )  # fmt: skip
    assert checked(fine, spec, "here").steps == 2
    with pytest.raises(DatasetError, match=r"here: action \[1 2\] of step 0 is one that its mask leaves out"):
        checked(fine._replace(action=fine.action[::-1]), spec, "here")
    with pytest.raises(DatasetError, match="here: the mask behind the last step masks every alternative of a choice"):
        checked(fine._replace(terminated=~ends & ends), spec, "here")
