"""Sample Factory: rollout workers step, policy workers choose, and experience lies where the learner reads it."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.links.local.inference import InferenceLink
from apexrl.roles import Evaluator, Learner, PolicyWorker, RolloutWorker
from apexrl.roles.env_worker import group_sizes
from apexrl.roles.rollout_worker import reply_fields, request_fields
from apexrl.topologies.program import Probe, Program, acting, room, stepping
from apexrl.topologies.replay_links import most_waiting, queue

_MOST_POLICY_WORKERS = 4  # times --policy-workers, that an auto-tuner may come to: ours, to look around


def sample_factory(config: Config, probe: Probe) -> Program:
    """Sample Factory (Petrenko et al. 2020, arXiv 2006.11751), with APPO or any agent of unrolls.

    Inference runs in policy workers, in batches over the environments of many rollout workers, which have them in
    groups: one steps while the others wait. To the learner travels nothing: rollout workers write what happened into
    slots of a first-in-first-out queue in shared memory, and that is where it samples. Weights travel to the policy
    workers and the evaluator alone. How old the policy was is known of every step, and ``--max-policy-lag`` limits it.
    """
    wiring = config.wiring
    splits = group_sizes(config, len(probe.spec.agents) or 1)
    groups = config.actor.actors * len(splits)
    if wiring.policy_workers > groups:
        raise ConfigError(
            f"--policy-workers {wiring.policy_workers} share {groups} groups of environments (--actors "
            f"{config.actor.actors} times --splits {len(splits)}): take fewer, or more actors"
        )
    servers = wiring.policy_workers
    if wiring.autotune:
        servers = min(_MOST_POLICY_WORKERS * servers, groups)
    program = Program(config)

    slots = program.replay(**queue(config, probe))
    weights = program.weights(probe.weights_nbytes)
    inference = program.link(
        InferenceLink.make,
        request=request_fields(probe.spec, probe.step_spec),
        reply=reply_fields(probe.spec, probe.step_spec),
        workers=room(config),
        splits=splits,
        servers=servers,
    )
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    central: dict[str, Any] = {**settings, "weights": weights, "restarts": config.learner.learner_restarts}
    # Policies move with those whom they answer: what lies between them is each host's own.
    policies: dict[str, Any] = {"count": wiring.policy_workers, "most": servers, "least": 1, "moves": True}
    workers = {"inference": inference, "most_waiting": most_waiting(config, probe.item), **acting(config)}
    program.role(Learner, **central, replay=slots)
    program.role(PolicyWorker, **central, **policies, inference=inference)
    program.role(RolloutWorker, **settings, **workers, replay=slots)
    program.role(Evaluator, **settings, weights=weights, **stepping(config))
    return program
