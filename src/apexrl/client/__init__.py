"""Actors for programs that own their main loop (a test harness, a game); the learner is on another host.

    import apexrl.client

    with apexrl.client.connect("redis://learner-host:6379", run="cartpole") as actor:
        action = actor.act(observation)
        ...                                                # the program takes the action
        actor.observe(reward, terminated, truncated, next_observation)

``act`` and ``observe`` never wait for the network: one thread sends experience and receives weights, as the uplink of
an actor host does, and another renews the lease of the slot, which determines ε. While the server or the learner is
away, the program continues with its newest weights.
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
        timeout: seconds to wait for the run to appear; later, for the first weights in ``act``, and for room when
            experience cannot be sent.
        trust: your own modules from which the run may name its agent (``--agent MODULE:Class``) or network; shipped
            ones are always trusted.
        token: shared with the learner, which signs the run's record with it; then the record may name any module.

    Raises:
        ConfigError: the URL or the name is invalid, this version of apexrl does not fit the run, its agent is of a
            module that is not trusted, or the record is not signed with ``token``.
        LinkError: the server cannot be reached, refuses access or is not suitable.
        WaitTimeout: the run did not appear in time.
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
