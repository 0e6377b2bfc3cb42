from __future__ import annotations

import re
import subprocess
import sys

import pytest

from apexrl.agents import AGENTS, agent_class
from apexrl.agents.dqn import DQN
from apexrl.errors import AgentError, ConfigError


def test_by_name_and_by_path() -> None:
    assert agent_class("dqn") is DQN
    assert agent_class("apexrl.agents.dqn:DQN") is DQN
    assert all(agent_class(name) for name in AGENTS)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("dqm", ConfigError, "did you mean 'dqn'"),
        ("PPO", ConfigError, "did you mean 'ppo'"),
        ("something", ConfigError, r"Known: dqn, .*; one of your own is 'package.module:Class'"),
        (":Agent", ConfigError, "is no 'package.module:Class'"),
        ("module:", ConfigError, "is no 'package.module:Class'"),
        ("no.such.module:Agent", ConfigError, "there is no module 'no'"),
        ("apexrl.agents.dqn:Missing", ConfigError, "has no class 'Missing'"),
        ("apexrl.agents.trained_network:METRICS_PERIOD_UPDATES", ConfigError, "has no class"),
        ("apexrl.agents.dqn:Transitions", AgentError, "Transitions lacks act, update"),
    ],
)
def test_what_cannot_be_found_says_why(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        agent_class(name)


def test_describing_loads_no_torch() -> None:
    assert all(info.description and info.needs for info in AGENTS.values())
    source = re.compile(r"^\w+.* (19|20)\d\d, .*(arXiv \d{4}\.\d{5}|ICLR|Nature)")  # who, when, where
    assert [name for name, info in AGENTS.items() if not source.match(info.citation)] == []
    code = "import sys, apexrl.agents as a; a.AGENTS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
