"""Where the gateway of the learner's node listens, and what workers in other groups must know to ask there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

from apexrl.config.placement import Listen
from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp.near_inference import NearInference
from apexrl.links.tcp.parameter_relay import ParameterGateway
from apexrl.links.tcp.remote_inference import RemoteInference
from apexrl.links.tcp.reserved_port import ReservedPort
from apexrl.links.tcp.tls import ClientTls, MadeCertificate

_util: Any = ray.util  # whose types say nothing of it


class GatewayPort:
    """A port on this node's address among Ray's, reserved for the gateway, whose process gets it as ``Listen``. A
    gateway that takes a dead one's place listens there again.

    Args:
        token: that workers must know.
        certificate: of the gateway.
        shared: always true, as gateways have processes of their own.
    """

    def __init__(self, token: str, certificate: MadeCertificate, shared: bool = True) -> None:
        self._token, self._certificate = token, certificate
        self._port = ReservedPort(str(_util.get_node_ip_address()))

    def __reduce__(self) -> tuple[Any, ...]:
        host, port = self._port.address
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return (Listen, (where, self._token, self._certificate))

    def inference(self, link: InferenceLink, near: bool) -> NearInference | RemoteInference:
        """What stands for ``link`` where a worker is; ``near``: on this node."""
        if near:
            return NearInference(link)
        address, tls = self._port.address, self._tls
        return RemoteInference(address, self._token, link.request, link.reply, link.splits, tls=tls)

    def parameters(self, slots: Sequence[int]) -> ParameterGateway:
        """What a relay for the workers in ``slots`` of the run is told. Its generations rise over all of its starts, so
        their leases need not."""
        return ParameterGateway(self._port.address, self._token, [(slot, 0) for slot in slots], tls=self._tls)

    @property
    def _tls(self) -> ClientTls:
        return ClientTls(fingerprint=self._certificate.fingerprint)

    def close(self) -> None:
        self._port.close()
