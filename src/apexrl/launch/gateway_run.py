"""The learner's side of a run that listens for other hosts (``launch.gateway_host``)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from apexrl.agents import AGENTS
from apexrl.config import AgentConfig, Config
from apexrl.config.placement import Listen
from apexrl.config.record_form import for_hosts
from apexrl.errors import ConfigError
from apexrl.launch.fork_client import preloaded
from apexrl.launch.host_agreement import open_to_hosts
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.local_run import supervise
from apexrl.launch.probe import probe_beginning, probe_learner
from apexrl.launch.run_claim import Claim
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.printable import host_name
from apexrl.links.tcp.gateway_messages import Record
from apexrl.links.tcp.handshake import LEAST_TOKEN
from apexrl.links.tcp.parameter_frames import schema_of
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.folder import RunFolder, versions
from apexrl.run.spec_json import fields_to_json, spec_to_json
from apexrl.run.status import Observer
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.gateway_cut import gateway_side, over_tcp
from apexrl.topologies.learner_hosts import sends_gradients

GATEWAY_PRELOAD = ("msgspec", "apexrl.links.tcp.inference_desk", "apexrl.links.tcp.parameter_desk")
_IDENTITY = "listen.json"
"""In the run folder: which of all runs it is, so that workers of a resumed one go on."""


def learn(
    config: Config,
    listen: Listen,
    observers: Sequence[Observer],
    claim: Claim | None,
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """The learner's side, from the probe to the summary.

    Raises:
        ConfigError: it cannot be a run over several hosts, or nobody can listen there.
    """
    config = _for_many(config, listen)
    wire = topology(config.topology)
    run_id = _known(None if claim is None else claim.folder) or str(uuid.uuid4())
    with closing(Supervisor(config, interrupts, (*preloaded(config), *GATEWAY_PRELOAD))) as supervisor:
        seen = supervisor.probe(probe_beginning if claim is None or claim.begins else probe_learner)
        whole = wire(config, seen)
        program = gateway_side(whole, {"listen": listen, "record": make_record(config, run_id, whole, seen)})

        def first(ledger: Ledger, board: ControlBoard) -> None:
            path, text = ledger.folder.path / _IDENTITY, json.dumps({"run_id": run_id}) + "\n"
            ledger.note(_IDENTITY, lambda: replace_text(path, text, ledger.folder.generations.check))

        return supervise(supervisor, program, config, observers, claim, began, seen, first)


def make_record(config: Config, run_id: str, program: Program, seen: Probe) -> Record:
    """What other hosts must know. Where this one keeps its runs is its own business. Of agent and network, hosts with
    environment workers are told a shipped agent's name, to show: nothing of it is called there."""
    config = replace(config, out=Config().out)
    more: dict[str, Any]
    if (learners := sends_gradients(program)) is not None:
        more = {"brings": "learners", "schema": schema_of(learners.ports["gradients"].options["shards"]).hex()}
    elif (found := over_tcp(program)).inference is not None:
        agent = AgentConfig(agent=config.agent.agent) if config.agent.agent in AGENTS else AgentConfig()
        config = replace(config, agent=agent)
        more = {"splits": list(found.inference.options["splits"])}
    else:
        assert found.gradients is not None
        schema = schema_of(found.gradients.options["shards"]).hex()
        more = {"brings": "gradients", "step_spec": fields_to_json(seen.step_spec), "schema": schema}
    return Record(
        run_id=run_id,
        name=config.name,
        apexrl=versions()["apexrl"] or "",
        host=host_name(),
        config=for_hosts(config),
        spec=spec_to_json(seen.spec),
        lease_seconds=config.hosts.lease_seconds,
        **more,
    )


def _for_many(config: Config, listen: Listen) -> Config:
    """``config`` settled for a run over several hosts.

    Raises:
        ConfigError: it cannot be one.
    """
    config = open_to_hosts(config, "--listen")
    try:
        _ = listen.address
    except ValueError:
        raise ConfigError(f"--listen {listen.listen!r} is no HOST:PORT (an IPv6 address stands in brackets)") from None
    if listen.tls:
        listen.tls.context()
    if len(listen.token) < LEAST_TOKEN:
        raise ConfigError(f"the token has {len(listen.token)} characters; at least {LEAST_TOKEN} keep others out")
    return config


def _known(folder: RunFolder | None) -> str:
    """The id of a run that is resumed; empty: it was never open to other hosts."""
    if folder is None:
        return ""
    path = folder.path / _IDENTITY
    try:
        return str(json.loads(read_text(path))["run_id"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it, and other hosts join anew") from error
