"""What ``apexrl list`` says, and that it says it quickly and legibly."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from apexrl.agents import AGENTS
from apexrl.cli.listing import SETS, SUBJECTS, show
from apexrl.config import Config
from apexrl.config.convert import flat
from apexrl.config.settings import as_flag
from apexrl.errors import ConfigError
from apexrl.presets import PRESETS
from apexrl.presets.known import Preset
from apexrl.topologies import TOPOLOGIES, placements


def listed(*words: str, width: int = 80) -> list[str]:
    text = io.StringIO()
    show(words, Console(file=text, width=width))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def told(lines: list[str], name: str) -> str:
    """What stands beside and below ``name``, as one line."""
    at, *_ = [place for place, line in enumerate(lines) if line.startswith(f"  {name} ")]
    mine = [lines[at].split(maxsplit=1)[1]]
    for line in lines[at + 1 :]:
        if not line.startswith("   "):
            break
        mine.append(line.strip())
    return " ".join(mine)


def test_one_agent_says_what_it_reads_and_one_setting_who_reads_it() -> None:
    reads = told(listed("td3", width=100), "td3").partition(" reads ")[2].split()
    assert {"--target-noise", "--sigma", "--capacity"} <= set(reads)
    assert not {"--temperature", "--noisy", "--gamma", "--seed"} & set(reads)
    line = told(listed("target-noise-clip", width=100), "--target-noise-clip")
    assert "float; 0 or more; default: 0.5" in line
    assert "has an effect only with not --target-noise 0" in line
    assert line.endswith("read by agents td3, td3_bc, fast_td3")
    assert told(listed("splits", width=200), "--splits").endswith("read by topologies ga3c, seed, sample_factory")


@pytest.mark.parametrize("width", [80, 120])
def test_agents_say_what_they_are_need_set_and_cite(width: int) -> None:
    lines = listed("agents", width=width)
    assert max(map(len, lines)) <= width
    for name, info in AGENTS.items():
        text = told(lines, name)
        assert text.startswith(info.description)
        assert text.endswith(info.citation)
    assert told(lines, "rainbow").count("--") >= 4
    assert "--residual 0.05" in told(lines, "bires_ddpg")
    titles = [line for line in listed("agents", width=240) if line.startswith("Agents for ")]
    assert {line.partition(":")[0].removeprefix("Agents for ") for line in titles} == {
        info.needs for info in AGENTS.values()
    }


def test_what_a_name_sets_is_said_where_it_is_no_default() -> None:
    lines = listed("agents", width=600)
    assert " sets --no-double --no-dueling Mnih" in told(lines, "dqn")
    assert " sets --no-double --no-dueling --distribution quantile Dabney" in told(lines, "qr_dqn")
    assert "sets" not in told(lines, "dueling_dqn")
    assert " sets --noisy --distribution categorical --epsilon 0 --alpha 0.5 Hessel" in told(lines, "rainbow")
    assert "--critic-hidden 2048 2048" in told(lines, "crossq")
    assert sum(SETS in line for line in lines) == len({info.needs for info in AGENTS.values()})
    defaults = flat(Config())
    for name, info in AGENTS.items():
        for key, value in info.settings.items():
            assert (as_flag(key, value) in told(lines, name)) == (value != defaults[key]), (name, key)


def test_one_agent_or_preset_alone() -> None:
    lines = listed("d4pg", width=200)
    assert [line for line in lines if line.startswith("  ") and line[2] not in " S"] == [lines[2]]
    assert told(lines, "d4pg").startswith(told(listed("agents", width=200), "d4pg") + " ")
    assert " reads --" in told(lines, "d4pg")
    assert lines[0] == f"Agents for {AGENTS['d4pg'].needs}: --agent NAME"
    assert told(listed("pendulum"), "pendulum") == told(listed("presets"), "pendulum")
    with pytest.raises(ConfigError, match=r"not 'rainbo' \(did you mean 'rainbow'\?\)"):
        listed("rainbo")


def test_presets_say_their_agents_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listed("presets", width=200)
    assert "Pendulum-v1; --agent sac" in told(lines, "pendulum")
    for agent in PRESETS["cartpole"].agents:
        assert agent in told(lines, "cartpole")
    assert told(lines, "lunarlander").endswith("needs apexrl[box2d] (installed)")
    monkeypatch.setattr(Preset, "missing", property(lambda preset: bool(preset.extra)))
    short = listed()
    assert told(short, "pong").endswith("needs apexrl[atari] (not installed)")
    assert "needs" not in told(short, "catch")


def test_all_in_short() -> None:
    lines = listed()
    assert max(map(len, lines)) <= 80
    names = {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "}
    assert names == {*PRESETS, *AGENTS, *TOPOLOGIES}
    assert lines[-1] == "More of each: apexrl list presets, agents or topologies."
    assert len(lines) < len(listed("agents")) + len(listed("presets"))


def test_topologies_say_whom_they_run_what_is_their_own_and_cite() -> None:
    lines = listed("topologies", width=400)
    apex, impala = told(lines, "apex"), told(lines, "impala")
    assert apex.endswith("Horgan et al. 2018, arXiv 1803.00933")
    assert "runs agents that learn from transitions or sequences: dqn, double_dqn," in apex
    assert "r2d2" in apex.partition("its default agent is dueling_dqn")[0]
    assert "its default agent is impala has --queue-batches" in impala
    assert "a2c, impala" in impala
    assert max(map(len, listed("topologies"))) <= 80


@pytest.mark.parametrize("width", [80, 100])
def test_topologies_end_with_a_table_of_where_they_run(width: int) -> None:
    lines = listed("topologies", width=width)
    at = lines.index("Where they run")
    rows, notes = placements.table()
    head, *found = lines[at + 1 : at + 2 + len(rows)]
    assert head.split("  ")[-1] == "--ray"
    for row, line in zip(rows, found, strict=True):
        assert line.split() == " ".join(row).split()
        columns = zip(placements.PLACEMENTS.values(), row[1:], strict=True)
        assert all(line[head.index(words) :].startswith(cell) for words, cell in columns), line
    said = " ".join(" ".join(lines[at + 2 + len(rows) :]).split())
    assert said == " ".join(f"({number}) {note}" for number, note in enumerate(notes, 1))


def test_a_name_may_be_an_agents_and_a_topologys() -> None:
    lines = listed("impala", width=120)
    assert [line for line in lines if line.startswith(("Agents", "Topologies"))] == [
        f"Agents for {AGENTS['impala'].needs}: --agent NAME",
        "Topologies: --topology NAME",
    ]
    assert told(listed("apex"), "apex") == told(listed("topologies"), "apex")


def test_an_unknown_subject_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"not 'agent' \(did you mean 'agents'\?\)"):
        show(["agent"], Console(file=io.StringIO()))
    assert SUBJECTS == ("presets", "agents", "topologies")
    with pytest.raises(ConfigError, match=r"'.:x' is no 'package.module:Class'"):
        show([".:x"], Console(file=io.StringIO()))


def test_listing_loads_neither_torch_nor_gymnasium() -> None:
    code = (
        "import sys; from apexrl.cli.main import main; assert main(['list', 'agents']) == 0; "
        "sys.exit(bool({'torch', 'gymnasium'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0
