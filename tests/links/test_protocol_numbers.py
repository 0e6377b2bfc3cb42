from __future__ import annotations

import pytest

from apexrl.errors import LinkError
from apexrl.links.protocol_numbers import Protocols


@pytest.mark.parametrize(
    ("ours", "theirs", "common"), [((2, 3), (2, 3), 3), ((3, 4), (2, 3), 3), ((2, 3), (3, 4), 3), ((2, 2), (2, 5), 2)]
)
def test_the_newest_that_both_speak_is_taken(ours: tuple[int, int], theirs: tuple[int, int], common: int) -> None:
    assert Protocols(*ours).newest_common(Protocols(*theirs), "it") == common


def test_two_releases_apart_are_refused_with_who_is_behind() -> None:
    with pytest.raises(LinkError, match="run r speaks protocol 4 to 5, and apexrl here 2 to 3: this one is"):
        Protocols(2, 3).newest_common(Protocols(4, 5), "run r")
    with pytest.raises(LinkError, match="it speaks protocol 1, and apexrl here 2 to 3: the other is more than one"):
        Protocols(2, 3).newest_common(Protocols(1, 1), "it")
