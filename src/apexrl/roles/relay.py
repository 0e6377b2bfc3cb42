"""The relay role, on a host whose workers compute gradients: passes them on to parameter servers elsewhere, and copies
what these publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apexrl.protocols import Context
from apexrl.roles.role_traits import RoleTraits
from apexrl.run.status import Work

if TYPE_CHECKING:
    from apexrl.links.local.gradient_ring import GradientLink
    from apexrl.links.local.sharded_parameters import ShardedParameters
    from apexrl.links.tcp.parameter_relay import ParameterGateway

_LAST_SECONDS = 2.0  # at the end, for gradients that wait


class Relay:
    """Stands for the parameter servers on a host of workers, which see no difference (``links.tcp.parameter_relay``).

    Args:
        gateway: to the servers' host.
    """

    traits = RoleTraits("relay", Work("carried_gradients", "slices/s", "carrying"), grace_seconds=10.0)

    def __init__(
        self,
        context: Context,
        *,
        gradients: GradientLink,
        parameters: ShardedParameters,
        gateway: ParameterGateway,
    ) -> None:
        from apexrl.links.tcp.parameter_relay import ParameterRelay

        self._context = context
        self._relay = ParameterRelay(gateway, gradients, parameters, context.generation)
        self._counted = 0, 0
        self._connected = True
        self._count()

    def step(self) -> bool:
        """Pass on what waits. False: nothing did."""
        moved = self._relay.step(self._context.patience)
        self._count()
        if self._relay.connected != self._connected:
            self._connected = self._relay.connected
            text = "parameters arrive and gradients leave again"
            text = text if self._connected else "the parameter servers cannot be reached: workers wait for them"
            self._context.send("log", text=text, level="info" if self._connected else "warning")
        return moved

    def close(self) -> None:
        """Pass on the last gradients, if the servers still take them."""
        deadline = self._context.clock() + (0.0 if self._context.hurried() else _LAST_SECONDS)
        while self._context.clock() < deadline and self._relay.connected and self._relay.waiting:
            self._relay.step(self._context.patience)
        self._relay.close()
        self._count()

    def _count(self) -> None:
        now = self._relay.passed, self._relay.lost
        self._context.count(carried_gradients=now[0] - self._counted[0], lost_gradients=now[1] - self._counted[1])
        self._counted = now
