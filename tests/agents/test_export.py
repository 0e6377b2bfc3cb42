"""Every shipped agent as an exported file acts as the agent does."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from signal_runs import Game, asks

from apexrl.agents import AGENTS, agent_class, with_agent
from apexrl.config import Config, EnvConfig
from apexrl.errors import AgentError, SnapshotError
from apexrl.evaluation.export import state_shapes
from apexrl.evaluation.loaded_agent import LoadedAgent
from apexrl.launch.probe import probe
from apexrl.networks.encoders import in_float32
from apexrl.spec import Array

EXAMPLE = Path(__file__).parents[2] / "examples" / "deploy_onnx.py"
QUICK = ("sac",)


def trained(name: str, shown: Any, asked: Any, **changes: Any) -> tuple[Game, LoadedAgent]:
    game = Game(name, shown, asked, **changes)
    agent = game.agent()
    for batch in game.batches(2):
        agent.update(agent.prepare(batch))
    return game, LoadedAgent(agent, game.spec)


def like(game: Game, loaded: LoadedAgent, path: Path, sampled: bool = False) -> None:
    """The file acts as the agent for several steps, in batches of several sizes; by the same random numbers."""
    import onnxruntime

    run = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in run.get_outputs()]
    states, agent = state_shapes(loaded.agent), cast("Any", loaded.agent)
    for rows in (1, 7):
        state: dict[str, Array] = {one: np.zeros((rows, *shape), np.float32) for one, shape in states.items()}
        theirs: Any = None
        for step in range(3):
            seen = {key: np.ascontiguousarray(value) for key, value in game.seen(rows, step).items()}
            raw = {key: value + loaded.spec.starts.get(key, 0) for key, value in seen.items()}
            if sampled:
                numbers, _ = agent.policy_noise.numbers(rows, theirs, copy.deepcopy(agent.generators["rng"]))
                raw[agent.policy_noise.kind] = numbers.astype(np.float32)
            out = dict(zip(names, run.run(None, raw | state), strict=True))
            wanted = loaded.agent.act(seen, theirs, np.zeros(rows, np.float32), greedy=not sampled)
            theirs = wanted.state
            np.testing.assert_allclose(
                out["action"], loaded.spec.action.as_counted(wanted.actions), rtol=1e-5, atol=1e-5
            )
            state = {one: out["next_" + one] for one in states}
            for one in states:
                np.testing.assert_allclose(state[one], theirs[one], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("file_format", ["onnx", "pt2"])
def test_convolutions_in_bfloat16_are_exported_in_float32(file_format: str, tmp_path: Path) -> None:
    game, loaded = trained("dqn", "image", "discrete", precision="bfloat16")
    network = cast("Any", loaded.agent).networks["q"].network
    try:
        before = network.encoder.encoders[0].precision
        path = tmp_path / f"agent.{file_format}"
        loaded.export(path, file_format)
        assert network.encoder.encoders[0].precision == before == "bfloat16"
        if file_format == "onnx":
            with in_float32(network):
                like(game, loaded, path)
        else:
            assert "bfloat16" not in str(torch.export.load(path).graph)
    finally:
        game.close()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.long]) for n in AGENTS])
def test_onnx_acts_as_the_agent(name: str, tmp_path: Path) -> None:
    recurrent = {"memory": "lstm"} if name == "ppo" else {}
    game, loaded = trained(name, "vector", asks(name)[-1], **recurrent)
    try:
        shapes = loaded.export(tmp_path / "agent.onnx")
        assert bool(state_shapes(loaded.agent)) == (name == "r2d2" or bool(recurrent))
        assert next(iter(shapes["outputs"])) == "action"
        like(game, loaded, tmp_path / "agent.onnx")
    finally:
        game.close()


def test_of_several_policies_the_first_acts(tmp_path: Path) -> None:
    game, loaded = trained("r2d2", "image", "discrete", policies=3)
    try:
        shapes = loaded.export(tmp_path / "agent.onnx")
        assert shapes["inputs"].keys() == {"observation", "lstm_h", "lstm_c"}
        like(game, loaded, tmp_path / "agent.onnx")
    finally:
        game.close()


@pytest.mark.parametrize(
    ("name", "asked", "changes"),
    [
        ("sac", "box", {"pink_noise": True}),
        ("discrete_sac", "multi", {}),
        ("ppo", "multi", {"memory": "lstm"}),
        pytest.param(
            "ppo", "box", {"memory": "transformer", "memory_heads": 2, "memory_context": 3}, marks=pytest.mark.long
        ),
        pytest.param("sac", "box", {"memory": "gru", "pink_noise": True}, marks=pytest.mark.long),
        ("ppo", "discrete", {}),
        ("ppo", "box", {"pink_noise": True}),
        pytest.param("crossq", "box", {}, marks=pytest.mark.long),
        pytest.param("fast_sac", "box", {}, marks=pytest.mark.long),
    ],
)
def test_a_file_that_draws_acts_as_the_agent_by_the_same_numbers(
    name: str, asked: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    game, loaded = trained(name, "vector", asked, **changes)
    try:
        noise, rng = cast("Any", loaded.agent).policy_noise, cast("Any", loaded.agent).generators["rng"]
        before = rng.bit_generator.state
        shapes = loaded.export(tmp_path / "agent.onnx", actions="sampled")
        assert rng.bit_generator.state == before
        kind = "normal" if asked == "box" else "uniform"
        assert list(shapes["inputs"].items())[-1] == (kind, ["float32", ["batch", noise.size]])
        like(game, loaded, tmp_path / "agent.onnx", sampled=True)
    finally:
        game.close()


@pytest.mark.parametrize(
    ("name", "asked", "memory"), [("dueling_dqn", "discrete", "transformer"), ("td3", "box", "gru")]
)
@pytest.mark.long
def test_a_memory_is_inputs_and_outputs_without_that_of_critics(
    name: str, asked: Any, memory: str, tmp_path: Path
) -> None:
    game, loaded = trained(name, "vector", asked, memory=memory, memory_heads=2, memory_context=3)
    try:
        shapes = loaded.export(tmp_path / "agent.onnx")
        states = {"gru": ["gru_h"], "transformer": ["transformer_cache", "transformer_steps"]}[memory]
        assert list(shapes["inputs"]) == ["observation", *states]
        assert list(shapes["outputs"]) == ["action", *(f"next_{state}" for state in states)]
        like(game, loaded, tmp_path / "agent.onnx")
    finally:
        game.close()


@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_an_agent_without_probabilities_is_not_exported_to_draw(name: str, tmp_path: Path) -> None:
    game, loaded = trained(name, "vector", asks(name)[-1])
    game.close()
    with pytest.raises(AgentError, match=r" has no policy to draw actions from: export it greedy"):
        loaded.export(tmp_path / "agent.onnx", actions="sampled")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("asked", ["discrete", "multi", "box"])
@pytest.mark.parametrize("shown", ["image", "dict"])
@pytest.mark.long
def test_images_and_dictionaries_and_every_kind_of_action(shown: Any, asked: Any, tmp_path: Path) -> None:
    game, loaded = trained("ppo", shown, asked)
    try:
        loaded.export(tmp_path / "agent.onnx")
        like(game, loaded, tmp_path / "agent.onnx")
    finally:
        game.close()


def test_a_program_of_torch_export_acts_as_the_agent(tmp_path: Path) -> None:
    game, loaded = trained("sac", "vector", "box")
    try:
        loaded.export(tmp_path / "agent.pt2", "pt2")
        program = torch.export.load(tmp_path / "agent.pt2").module()
        seen = game.seen(5, 3)
        wanted = loaded.agent.act(seen, None, np.zeros(5, np.float32), greedy=True).actions
        with torch.no_grad():
            (action,) = program(*(torch.from_numpy(seen[name]) for name in loaded.spec.observation))
        np.testing.assert_allclose(action.numpy(), wanted, rtol=1e-5, atol=1e-5)
    finally:
        game.close()


def test_an_agent_without_decide_is_refused(tmp_path: Path) -> None:
    game, loaded = trained("sac", "vector", "box")
    game.close()

    class Own:
        def __init__(self) -> None:
            self.act, self.step_spec = loaded.agent.act, loaded.agent.step_spec

    with pytest.raises(AgentError, match=r"^Own cannot be exported: give it decide"):
        LoadedAgent(Own(), loaded.spec).export(tmp_path / "agent.onnx")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_file_that_acts_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    game, loaded = trained("sac", "vector", "box")
    game.close()
    own = loaded.agent.act

    def other(*given: Any, **more: Any) -> Any:
        acted = own(*given, **more)
        return acted._replace(actions=acted.actions + np.float32(0.01))

    monkeypatch.setattr(loaded.agent, "act", other)
    with pytest.raises(SnapshotError, match="is not written: its action is"):
        loaded.export(tmp_path / "agent.pt2", "pt2")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(SnapshotError, match=r"cannot write .*/file/agent\.pt2: "):
        loaded.export(tmp_path / "file" / "agent.pt2", "pt2")


@pytest.mark.long
@pytest.mark.parametrize(("name", "actions"), [("r2d2", "greedy"), ("ppo", "sampled")])
def test_the_example_plays_without_this_package(name: str, actions: Any, tmp_path: Path) -> None:
    config = with_agent(Config(env=EnvConfig(env="CartPole-v1")), name)
    spec = probe(config).spec
    agent = agent_class(name)(spec, config.agent, "cpu", 1)
    LoadedAgent(agent, spec).export(tmp_path / "agent.onnx", actions=actions)
    blocked = "import sys; sys.modules['apexrl'] = sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    run = "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    words = [sys.executable, "-c", blocked + run, str(EXAMPLE), str(tmp_path / "agent.onnx"), "CartPole-v1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("return") == 3
