"""The gateway role: connects workers of other hosts to this host's inference or parameter servers, over TCP."""

from __future__ import annotations

import errno
import queue
import time
from typing import TYPE_CHECKING, Any

from apexrl.config import Config
from apexrl.config.placement import Listen
from apexrl.errors import ConfigError
from apexrl.protocols import Context
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.env_changes import encoded
from apexrl.run.status import Level, Work

if TYPE_CHECKING:
    from apexrl.links.local.gradient_ring import GradientLink
    from apexrl.links.local.inference import InferenceLink
    from apexrl.links.local.sharded_parameters import ShardedParameters
    from apexrl.links.tcp.gateway_messages import Record
    from apexrl.links.tcp.gateway_server import Gateway

_LAGS = ("lag", "lag_histogram", "run_lag", "run_lag_histogram")
_REPORT_SECONDS = 0.5
_MOST_EPISODES = 1000  # in one message
_MOST_TEXTS = 1000  # that wait to be told; of more, none
_LEAVE_SECONDS = 3.0  # at the end, for hosts to leave
_TAKEN_SECONDS = 10.0  # that an address may still be in use by a gateway that was just killed


class WorkerGateway:
    """Lets environment workers ask for actions (``inference``), or workers send ``gradients`` and read ``parameters``.

    Where hosts join by themselves, it counts what comes from them as their workers would here, and tells who comes and
    goes.

    Its connections have threads of their own (``gateway_server``). One that takes a dead gateway's place finds
    in the link's memory which generations there have been; workers and hosts come again by themselves.

    Args:
        listen: where to listen, and the token.
        record: what other hosts are told of the run; None: none joins, and whoever started this role hears from workers
            elsewhere what they count.
        first: slot of a remote worker; those before it are this host's.
        found: hosts find the address by themselves: nobody is told of it.
    """

    traits = RoleTraits("gateway", Work("carried_steps", "steps/s", "carrying"), grace_seconds=10.0)

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        listen: Listen,
        record: Record | None,
        first: int,
        inference: InferenceLink | None = None,
        gradients: GradientLink | None = None,
        parameters: ShardedParameters | None = None,
        found: bool = False,
    ) -> None:
        from apexrl.links.tcp.inference_desk import InferenceDesk
        from apexrl.links.tcp.parameter_desk import ParameterDesk

        self._context = context
        self._counts_for_hosts = record is not None
        self._texts: queue.Queue[tuple[str, Level]] = queue.Queue(_MOST_TEXTS)
        self._untold = 0  # texts for which there was no room
        if inference is not None:
            desk: InferenceDesk | ParameterDesk = InferenceDesk(inference, first)
        else:
            assert gradients is not None, "a gateway has a link to let others use"
            assert parameters is not None, "gradients go where parameters come from"
            desk = ParameterDesk(gradients, parameters, first)
        self._gateway = self._listen(
            listen,
            desk=desk,
            token=listen.token,
            record=record,
            shared_port=found,
            lease_seconds=config.hosts.lease_seconds,
            tell=self._tell,
            tls=listen.tls.context() if listen.tls else None,
        )
        self._totals = dict.fromkeys(("env_steps", "lost_gradients"), 0) | {"episodes": 0}
        self._change_told = 0  # version of the settings of environments that hosts hear of
        self._next_report = context.clock() + _REPORT_SECONDS
        if record is None:
            return
        host, port = self._gateway.address
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        pin = f" --tls-fingerprint {listen.tls.fingerprint}" if listen.tls else ""
        kinds = {"environments": "environment workers", "gradients": "workers", "learners": "learners"}
        kind = kinds[record.brings]
        text = f"other hosts may bring {len(desk.slots)} {kind}"
        text += f" (they connect to {where})" if found else f": apexrl envs --connect {where}{pin}"
        context.send("log", text=text, level="info")

    def step(self) -> bool:
        """Tell what came since the last call. False: nothing did."""
        moved = self._flush()
        if self._context.clock() >= self._next_report:
            self._report()
        if not moved:
            time.sleep(self._context.patience / 10)
        return moved

    def close(self) -> None:
        """Tell the hosts that the run is over, and hang up."""
        self._gateway.close(_LEAVE_SECONDS)
        self._flush()
        self._report()

    def _listen(self, listen: Listen, **more: Any) -> Gateway:
        from apexrl.links.tcp.gateway_server import Gateway

        host, port = listen.address
        deadline = time.monotonic() + _TAKEN_SECONDS
        while True:
            try:
                return Gateway(host=host, port=port, **more)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < deadline and not self._context.should_stop():
                    time.sleep(0.1)
                    continue
                why = "something else listens there" if error.errno == errno.EADDRINUSE else str(error)
                raise ConfigError(f"nobody can listen at --listen {listen.listen}: {why}") from None

    def _flush(self) -> bool:
        counts, returns, lengths, reports, metrics = self._gateway.news()
        self._context.count(carried_steps=counts.get("env_steps", 0))
        if self._counts_for_hosts and (counts or returns):
            counts = {**counts, "episodes": len(returns)}
            self._context.count(**counts)
            for name, count in counts.items():
                self._totals[name] += count
        for begin in range(0, len(returns), _MOST_EPISODES):
            some = slice(begin, begin + _MOST_EPISODES)
            env_steps = self._context.total("env_steps")
            more = {"metrics": metrics} if metrics and not begin else {}
            self._context.send("episodes", returns=returns[some], lengths=lengths[some], env_steps=env_steps, **more)
        for report in reports:
            said = {name: getattr(report, name) for name in ("values", "generation", *_LAGS)}
            self._context.send("metrics", **said, reporter=report.worker, updates=self._context.total("updates"))
        told = False
        while not self._texts.empty():
            text, level = self._texts.get()
            self._context.send("log", text=text, level=level)
            told = True
        self._gateway.members.env_steps = self._context.total("env_steps")
        change = self._context.env_change()
        if change.version != self._change_told:
            self._change_told = change.version
            self._gateway.members.env_change = encoded(change, "the run")
        if self._untold:
            untold, self._untold = self._untold, 0
            self._context.count(dropped_messages=untold)
        return bool(counts or returns or reports or told)

    def _report(self) -> None:
        """``gateway``: what this generation of it has counted."""
        self._next_report = self._context.clock() + _REPORT_SECONDS
        late = self._context.total("late_requests")
        self._context.send("gateway", **self._gateway.counts._asdict(), **self._totals, late_requests=late)

    def _tell(self, text: str, level: Level) -> None:
        try:
            self._texts.put_nowait((text, level))
        except queue.Full:
            self._untold += 1
