"""What people may import, and what importing it may cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

import apexrl

PUBLIC = {
    "ActorConfig",
    "AgentConfig",
    "ApexrlError",
    "Callback",
    "Config",
    "EnvConfig",
    "Evaluation",
    "EvaluatorConfig",
    "LearnerConfig",
    "LoadedAgent",
    "PolicyLag",
    "ReplayConfig",
    "Run",
    "RunStatus",
    "StopConfig",
    "WorkerStatus",
    "__version__",
    "evaluate",
    "join",
    "join_envs",
    "load",
    "preset",
    "publish",
    "resume",
    "stand_by",
    "train",
}


def test_the_public_names() -> None:
    assert set(apexrl.__all__) == PUBLIC
    assert len(apexrl.__all__) == len(PUBLIC)
    assert set(dir(apexrl)) == PUBLIC
    assert set(apexrl._HOMES) == PUBLIC - {"__version__"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(apexrl, name)
    if name != "__version__":
        assert value.__name__ == name
        assert value.__doc__


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'apexrl' has no attribute 'trian'"):
        _ = apexrl.trian


def test_the_version_stands_in_the_package_alone() -> None:
    import re
    import tomllib
    from pathlib import Path

    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    source = project["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert re.findall(r'(?m)^__version__ = "(.+)"$', (root / source).read_text()) == [apexrl.__version__]


def loaded_after(code: str) -> set[str]:
    code += "; import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


HEAVY = {"torch", "gymnasium", "matplotlib", "tensorboard", "safetensors"}


def test_import_apexrl_is_light() -> None:
    loaded = loaded_after("import apexrl")
    assert not loaded & (HEAVY | {"numpy", "rich", "tyro"})


@pytest.mark.parametrize(
    "code",
    [
        "from apexrl import train, resume, load, evaluate, Run, LoadedAgent",
        "import apexrl; apexrl.preset('pong').config",
        "import apexrl.cli.main",
        "from apexrl.run import checkpoint, metrics, folder, status; from apexrl.config import convert",
        "from apexrl.report import curves, live_panel",
        "from apexrl import agents, topologies",
    ],
)
def test_nothing_heavy_before_it_is_used(code: str) -> None:
    assert not loaded_after(code) & HEAVY


def test_help_is_light() -> None:
    code = "from apexrl.cli.main import main; main(['train', 'pong', '--help']); main(['list']); main(['--help'])"
    assert not loaded_after(code) & (HEAVY | {"numpy.random"})
