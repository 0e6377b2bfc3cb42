"""GA3C: environments ask predictor threads of one model for actions, and trainer threads train it."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.links.local.inference import InferenceLink
from apexrl.roles import EnvWorker, Evaluator, ModelServer
from apexrl.roles.env_worker import group_sizes, reply_fields, request_fields
from apexrl.topologies.program import Probe, Program, acting, room, stepping
from apexrl.topologies.replay_links import queue

_MOST_THREADS = 8  # of a kind, that an auto-tuner may come to (ours: they share one interpreter)


def ga3c(config: Config, probe: Probe) -> Program:
    """GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256), with processes for its environments.

    Inference runs in predictor threads, and learning in trainer threads of the same process: there is one model, and
    no weights travel but to the evaluator. To the trainers travel unrolls through a queue, which makes environments
    wait when it is full; meanwhile the model changes, so unrolls have some policy lag.

    Raises:
        ConfigError: a trainer would wait for more unrolls than it may take.
    """
    wiring = config.wiring
    if wiring.training_min_batch > config.learner.batch_size:
        raise ConfigError(
            f"--training-min-batch {wiring.training_min_batch} is more than --batch-size {config.learner.batch_size}, "
            "the most that a trainer takes at once: lower the one or raise the other"
        )
    program = Program(config)

    inference = program.link(
        InferenceLink.make,
        request=request_fields(probe.spec),
        reply=reply_fields(probe.spec),
        workers=room(config),
        splits=group_sizes(config, len(probe.spec.agents) or 1),
    )
    weights = program.weights(probe.weights_nbytes)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    threads: dict[str, Any] = {
        "predictors": program.thread_count("predictor", wiring.predictors, _MOST_THREADS),
        "trainers": program.thread_count("trainer", wiring.trainers, _MOST_THREADS),
    }
    central: dict[str, Any] = {"replay": program.replay(**queue(config, probe)), "weights": weights}

    restarts = config.learner.learner_restarts
    program.role(ModelServer, **settings, **central, **threads, inference=inference, restarts=restarts)
    program.role(EnvWorker, **settings, inference=inference, **acting(config))
    program.role(Evaluator, **settings, weights=weights, **stepping(config))
    return program
