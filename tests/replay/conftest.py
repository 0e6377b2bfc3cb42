"""What a test has made is closed after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from open_replays import close_all


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()
