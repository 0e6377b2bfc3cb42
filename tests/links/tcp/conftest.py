from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from gateway_rig import Place

from apexrl.links.tcp.tls import ServerTls


@pytest.fixture
def places() -> Iterator[Callable[..., Place]]:
    with ExitStack() as stack:

        def make(tls: ServerTls | None = None) -> Place:
            place = Place(tls)
            stack.callback(place.gateway.close)
            return place

        yield make
