"""What a user is told of an agent of their own that is at fault: its name, what it gave, and what was wanted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recording_observer import small

from apexrl.config import Config
from apexrl.errors import AgentError, SpecError
from apexrl.launch import launch
from apexrl.launch.probe import probe


def own(tmp_path: Path, name: str, serial: bool = True) -> Config:
    config = replace(small(tmp_path), serial=serial)
    return replace(config, agent=replace(config.agent, agent=f"faulty_agents:{name}", n_step=1))


def test_a_constructor_that_raises_is_told_with_its_line_and_the_observations(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        probe(own(tmp_path, "Unmade"))
    text = str(caught.value)
    assert "agent faulty_agents:Unmade cannot be made for this environment" in text
    assert "Unmade(spec, config, device, seed) raised KeyError: 'nothing' (" in text
    assert "faulty_agents.py:" in text
    assert "Observations here are observation float32 [4]" in text


def test_a_constructor_of_other_arguments_is_told(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"OfTwo\(spec, config, device, seed\) raised TypeError: .* arguments"):
        probe(own(tmp_path, "OfTwo"))


def test_what_a_shipped_agent_says_stays_as_it_is(tmp_path: Path) -> None:
    config = small(tmp_path, env="Pendulum-v1")
    with pytest.raises(AgentError, match="discrete") as caught:
        probe(config)
    assert "cannot be made" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Hollow", r"agent faulty_agents:Hollow: weights\(\) returned only empty arrays \('head.weight' \[0, 2\]\)"),
        ("Bare", r"agent faulty_agents:Bare: weights\(\) returned an empty dict"),
        ("Wordy", r"agent faulty_agents:Wordy: weights\(\) must return a dict of arrays, .* AttributeError"),
    ],
)
def test_weights_that_hold_nothing_are_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(AgentError, match=text):
        probe(own(tmp_path, name))


@pytest.mark.parametrize("name", ["Column", "Seven", "LaterSeven"])
@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_actions_that_cannot_be_are_the_agents_fault(tmp_path: Path, name: str, vector: str) -> None:
    config = own(tmp_path, name)
    config = replace(config, actor=replace(config.actor, vector=vector))  # type: ignore[arg-type]
    row = 0 if vector == "sync" else r"\d"  # whoever is ready first
    what = {"Column": r"actions of shape \[4, 1\]"}.get(name, f"the action 7 in row {row}")
    wanted = r"for 4 observations this environment takes int64 \[4\], each from 0 to 1"
    with pytest.raises(AgentError, match=rf"agent faulty_agents:{name}: act\(\) returned {what}; {wanted}"):
        launch(config)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "Nan",
            r"update 3 \(batch of 16 items, keys 0x.*: agent faulty_agents:Nan returned .*: priority of row 0 is nan",
        ),
        ("Negative", r"update 1 \(.*: agent faulty_agents:Negative returned .*: priority of row 0 is -1"),
        ("Short", r"update 1 \(.*: agent faulty_agents:Short returned .* priorities"),
    ],
)
def test_priorities_that_cannot_be_name_agent_and_update(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(AgentError, match=text) as caught:
        launch(own(tmp_path, name))
    assert "checkpoint" in str(caught.value)
    assert "Look at the agent's update()" in str(caught.value)


@pytest.mark.parametrize("topology", ["apex", "seed"])
@pytest.mark.parametrize(
    ("name", "declared", "has"),
    [("TellsMore", "no field", "'certainty', which is none of them"), ("TellsLess", "'certainty'", "no 'certainty'")],
)
def test_extras_that_are_not_as_declared_name_agent_and_field(
    tmp_path: Path, topology: str, name: str, declared: str, has: str
) -> None:
    said = rf"agent faulty_agents:{name}: its step_spec declares {declared} .* the extras of act\(\) have {has}\. Make"
    with pytest.raises(AgentError, match=said):
        launch(replace(own(tmp_path, name), topology=topology))


@pytest.mark.parametrize("topology", ["apex", "seed"])
def test_extras_and_states_may_be_lists(tmp_path: Path, topology: str) -> None:
    summary = launch(replace(own(tmp_path, "RecordsLists"), topology=topology))
    assert summary["stopped_by"] != "error"
    assert summary["env_steps"] > 0


@pytest.mark.parametrize("topology", ["apex", "seed"])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("RecordsDoubles", r"the extra 'feature' as float64 \[\d, 3\]; .* declares float32 \[\d, 3\]"),
        ("RecordsOneColumn", r"the extra 'feature' as float32 \[\d, 1\]; .* declares float32 \[\d, 3\]"),
        ("RecordsTooMany", r"the extra 'feature' as float32 \[[59], 3\]; .* declares float32 \[[48], 3\]"),
        ("RecordsANumber", r"the extra 'feature' as float32 \[\]; .* declares float32 \[\d, 3\]"),
        ("KeepsTooMany", r"the recurrent state 'h' of shape \[\d, 2\]; .* first dimension must be \d"),
    ],
)
def test_extras_and_states_of_other_forms_name_agent_and_field(
    tmp_path: Path, topology: str, name: str, what: str
) -> None:
    with pytest.raises(AgentError, match=rf"agent faulty_agents:{name}: act\(\) returned {what}"):
        launch(replace(own(tmp_path, name), topology=topology))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ActsNothing", r"agent faulty_agents:ActsNothing: act\(\) returned NoneType; it must return Acted"),
        (
            "TellsNothing",
            r"agent faulty_agents:TellsNothing: the extras of act\(\) are a NoneType; they must be a dict",
        ),
        ("LearnsNothing", r"agent faulty_agents:LearnsNothing: update\(\) returned NoneType; it must return Learned"),
        ("TellsText", "the agent returned the metric 'mood' as 'good'; it must be a number"),
    ],
)
def test_answers_that_are_none_name_what_is_wanted(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(AgentError, match=text):
        launch(own(tmp_path, name))


def test_in_processes_the_first_such_update_ends_the_run(tmp_path: Path) -> None:
    config = own(tmp_path, "Nan", serial=False)
    with pytest.raises(AgentError, match=r"learner-0: update 3 \(batch .*agent faulty_agents:Nan") as caught:
        launch(config)
    assert "in a row" not in str(caught.value)


@pytest.mark.parametrize("serial", [True, False])
def test_a_checkpoint_of_another_network_names_file_and_agent(tmp_path: Path, serial: bool) -> None:
    config = replace(small(tmp_path), serial=True)
    launch(config)
    other = replace(
        config, serial=serial, agent=replace(config.agent, hidden=(8,)), stop=replace(config.stop, env_steps=9000)
    )
    with pytest.raises(SpecError) as caught:
        launch(other, resume=tmp_path / "run")
    text = str(caught.value)
    assert "checkpoints/generation-" in text
    assert f"does not fit agent {config.agent.agent}: weights are of another network" in text
    assert "config.toml" in text
    assert "in a row" not in text
