"""For programs that own their main loop (a test harness, a game): the policy here, the learner elsewhere.

    import apexrl.client

    with apexrl.client.connect("redis://learner-host:6379", run="cartpole") as actor:
        action = actor.act(observation)
        ...                                                # the program does it, and sees what comes of it
        actor.observe(reward, terminated, truncated, next_observation)

``act`` and ``observe`` never wait for the network: a thread carries experience up and weights down, as the uplink of an
actor host does, and another keeps the lease of the slot that ε belongs to. While the server or the learner is away, the
program goes on with the weights that it has.
"""

from __future__ import annotations

from collections.abc import Sequence

from apexrl.client.external_actor import ClientActor

__all__ = ["ClientActor", "connect"]


def connect(url: str, run: str, timeout: float = 60.0, *, trust: Sequence[str] = (), token: str = "") -> ClientActor:
    """Join a run as an actor with one environment, which the calling program steps.

    Args:
        url: of the Redis server: ``redis://USER:PASSWORD@HOST:PORT``, ``rediss://`` for TLS.
        run: the run's name (``apexrl learner PRESET --redis URL --run NAME``).
        timeout: seconds to wait for the run to appear; later, that ``act`` waits for the first weights, and that it or
            ``observe`` wait for room when experience finds no way to the learner.
        trust: modules of yours of which the run's agent (``--agent MODULE:Class``) or network may be; shipped ones
            always may.
        token: shared with the learner, which signs the run's record with it; then all that the record names may be.

    Raises:
        ConfigError: the URL or the name is none, or this version of apexrl cannot serve in that run; or its agent is
            of a module that is not trusted, or the record is not signed with ``token``.
        LinkError: the server cannot be reached, refuses us, or is not fit for a run.
        WaitTimeout: no such run appeared in time.
        ExhaustedError: every actor slot of the run is taken.
        AgentError: the run's agent cannot be made here.
    """
    from apexrl.client.background import Carrier  # brings redis

    carrier = Carrier.join(url, run, timeout, trust, token)
    try:
        return ClientActor(carrier, timeout)
    except BaseException:
        carrier.close()
        raise
