"""SEED: environments ask a server beside the learner for actions, and the server records the experience."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.links.local.inference import InferenceLink
from apexrl.roles import EnvWorker, Evaluator, InferenceServer, Learner
from apexrl.roles.env_worker import group_sizes, reply_fields, request_fields
from apexrl.topologies.dataset_links import with_dataset
from apexrl.topologies.program import Probe, Program, acting, room, stepping
from apexrl.topologies.replay_links import experience, most_waiting


def seed(config: Config, probe: Probe) -> Program:
    """SEED (Espeholt et al. 2020, arXiv 1910.06591), on one machine.

    Inference runs in a server, in batches over all environments; a worker has environments and no weights. To the
    learner travel what the server gathered: unrolls through a queue (SEED's V-trace), or prioritized sequences (its
    R2D2) or transitions. Weights travel to the server and the evaluator alone.
    """
    program = Program(config)

    replay = program.replay(**experience(config, probe))
    weights = program.weights(probe.weights_nbytes)
    inference = program.link(
        InferenceLink.make,
        request=request_fields(probe.spec),
        reply=reply_fields(probe.spec),
        workers=room(config),
        splits=group_sizes(config, len(probe.spec.agents) or 1),
    )
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    central: dict[str, Any] = {"weights": weights, "restarts": config.learner.learner_restarts}

    program.role(Learner, **settings, **central, replay=with_dataset(program, config, probe, replay))
    throttle = most_waiting(config, probe.item)
    program.role(InferenceServer, **settings, **central, replay=replay, inference=inference, most_waiting=throttle)
    program.role(EnvWorker, **settings, inference=inference, **acting(config))
    program.role(Evaluator, **settings, weights=weights, **stepping(config))
    return program
