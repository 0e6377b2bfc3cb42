"""A trained agent is published in a folder or on the hub, with its scores, and evaluated from there."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import apexrl
from apexrl.cli import main
from apexrl.errors import ConfigError, LinkError
from apexrl.evaluation.model_card import model_card
from apexrl.evaluation.published import fetch
from apexrl.run.folder import RunFolder
from hub_stand_in import HubStandIn
from test_api import SMALL, a_run

RETURNS = [float(value) for value in range(20)]


@pytest.fixture
def ended(tmp_path: Path) -> RunFolder:
    """A run that has ended by itself."""
    folder = a_run(tmp_path)
    rows = [
        {"kind": "evaluation", "final": True, "weights": weights, "returns": RETURNS} for weights in ("best", "last")
    ]
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.write_summary({"env_steps": 4000, "updates": 90, "error": "/home/me", "versions": {"apexrl": "1.2"}})
    return folder


class Hub(ModuleType):
    """Where huggingface_hub meets the network."""

    def __init__(self, store: Path) -> None:
        super().__init__("huggingface_hub")
        self.store, self.made, self.down = store, dict[str, Any](), False

    def HfApi(self) -> Hub:
        return self

    def create_repo(self, *, repo_id: str, private: bool | None, exist_ok: bool) -> str:
        if self.down:
            raise ConnectionError("no route")
        self.made = {"repo_id": repo_id, "private": private, "exist_ok": exist_ok}
        return f"https://hub/{repo_id}"

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        shutil.copytree(folder_path, self.store / repo_id)
        (self.store / repo_id / "evil.pkl").write_bytes(b"no")

    def snapshot_download(
        self, *, repo_id: str, revision: str | None, local_dir: str, allow_patterns: list[str]
    ) -> None:
        if self.down:
            raise ConnectionError("no route")
        for name in allow_patterns:
            if (self.store / repo_id / name).is_file():
                (Path(local_dir) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.store / repo_id / name, Path(local_dir) / name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", found)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_folder_has_card_weights_and_film_and_can_be_evaluated(
    ended: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "out" / "agent"
    to.parent.mkdir()
    assert main.main(["publish", str(ended.path), str(to), "--licence", "cc-by-4.0"]) == 0
    assert capsys.readouterr().out.strip().endswith(str(to))
    card = (to / "README.md").read_text()
    for told in (
        "mean return of the best weights | **9.50** (95 % interval ",
        "seed of the run | 1",
        "cc-by-4.0",
        "apexrl 1.2",
        "environment steps | 4,000",
        f"apexrl eval {to}",
        "[A film of one episode](videos/episode-001.mp4)",
    ):
        assert told in card
    texts = [path.read_text() for path in to.rglob("*.*") if path.suffix in (".json", ".toml")]
    assert "/home/me" not in "".join(texts)
    assert not [path for path in to.rglob("*") if path.suffix in (".pkl", ".pt", ".py")]
    assert len(apexrl.evaluate(to, 1).returns) == 1
    with pytest.raises(ConfigError, match="is not empty: give a new folder"):
        apexrl.publish(ended.path, to, licence="mit", video=False)
    with pytest.raises(ConfigError, match=r"cannot publish in .*Not a directory"):
        apexrl.publish(ended.path, to / "README.md" / "agent", licence="mit", video=False)


def test_the_hub_gets_one_commit_and_gives_an_agent_back(ended: RunFolder, hub: Hub) -> None:
    url = apexrl.publish(ended.path, "hf:me/pole", licence="mit", video=False, private=True)
    assert (url, hub.made) == ("https://hub/me/pole", {"repo_id": "me/pole", "private": True, "exist_ok": True})
    assert 'license: "mit"' in (hub.store / "me/pole/README.md").read_text()
    assert apexrl.load("hf:me/pole").act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    brought = {path.name for path in Path("runs/hf-me--pole").rglob("*") if path.is_file()}
    assert brought == {"config.toml", "env_spec.json", "summary.json", "best.safetensors"}


def test_agents_of_several_repositories_and_revisions_lie_apart(ended: RunFolder, hub: Hub) -> None:
    for name in ("me/the-pole", "me-the/pole"):
        apexrl.publish(ended.path, f"hf:{name}", licence="mit", video=False)
    wanted = ("hf:me/the-pole", "hf:me-the/pole", "hf:me/the-pole@v1", "hf:me/the-pole@pr/1")
    folders = {fetch(where, Path("runs")) for where in wanted}
    assert len(folders) == len(wanted)
    assert {folder.parent for folder in folders} == {Path("runs")}


def test_trouble_with_the_hub_is_told(ended: RunFolder, hub: Hub) -> None:
    (hub.store / "me/other").mkdir(parents=True)
    with pytest.raises(ConfigError, match="hf:me/other holds no agent of apexrl"):
        apexrl.load("hf:me/other")
    for name in ("hf:me", "hf:me/../x", "hf:/x", "hf:me/x y"):
        with pytest.raises(ConfigError, match="is no repository: write hf:USER/NAME"):
            apexrl.load(name)
    hub.down = True
    with pytest.raises(LinkError, match="hf:me/pole could not be read: ConnectionError: no route"):
        apexrl.load("hf:me/pole")
    with pytest.raises(LinkError, match="hf:me/pole could not be published: ConnectionError: no route"):
        apexrl.publish(ended.path, "hf:me/pole", licence="mit", video=False)


def test_a_run_without_a_final_evaluation_or_a_licence_is_refused(tmp_path: Path, ended: RunFolder) -> None:
    with pytest.raises(ConfigError, match="say under which licence"):
        apexrl.publish(ended.path, tmp_path / "x", licence="", video=False)
    ended.metrics_path.write_text('{"kind": "evaluation", "final": false, "returns": [1.0]}\n')
    with pytest.raises(ConfigError, match=r"no final evaluation, .* apexrl resume .*run --env-steps N"):
        apexrl.publish(ended.path, tmp_path / "x", licence="mit")
    assert not (tmp_path / "x").exists()


def test_metadata_of_a_card_are_yaml_whatever_an_environment_is_called() -> None:
    yaml = pytest.importorskip("yaml")
    card = model_card(SMALL, {}, [1.0], None, "hf:a/b", 'a "licence": [x')
    told = yaml.safe_load(card.split("---")[1])
    assert told["license"] == 'a "licence": [x'
    assert told["model-index"][0]["results"][0]["metrics"][0]["value"] == 1


def test_the_hubs_own_library_uploads_and_downloads(ended: RunFolder, tmp_path: Path) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip("huggingface_hub is not installed (extra hub)")
    hub = HubStandIn("me/pole")
    surroundings = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_none", "HF_HOME": str(tmp_path / "hf")}

    def command(*words: str) -> str:
        called = [sys.executable, "-m", "apexrl.cli", *words]
        done = subprocess.run(called, capture_output=True, text=True, cwd=tmp_path, env=surroundings, timeout=200)
        assert done.returncode == 0, (done.stderr, hub.asked)
        return done.stdout

    try:
        assert "me/pole" in command("publish", str(ended.path), "hf:me/pole", "--licence", "mit", "--no-video")
        assert set(hub.files) >= {"README.md", "config.toml", "env_spec.json", "checkpoints/best.safetensors"}
        assert "over 2 episodes" in command("eval", "hf:me/pole", "--episodes", "2")
    finally:
        hub.close()
