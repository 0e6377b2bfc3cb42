"""A run's pool of earlier policies, ``pool/`` of its folder: weights as checkpoints, ratings as JSON.

``policy-000020000.safetensors`` has the weights of that many environment steps, ``newest.safetensors`` those that were
published last, ``ratings.json`` what is known of all. Each file is replaced whole, and the ratings last: a policy that
they do not name is not in the pool. So a pool outlives whoever writes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from apexrl.errors import SnapshotError
from apexrl.run import checkpoint
from apexrl.run.atomic_files import read_text, replace_text
from apexrl.run.ownership import Fence
from apexrl.spec import Array

FOLDER: Final = "pool"
RATINGS: Final = "ratings.json"
NEWEST: Final = "newest"
"""Name of the policy that was published last."""
MEMORY: Final = 200.0
"""Games against one policy that count towards how often it is beaten; of more, the latest weigh most (ours)."""

_FORMAT: Final = 1
_MOST_BYTES: Final = 16 << 20
_MOST_MEMBERS: Final = 10_001


@dataclass
class Member:
    """A policy of the pool."""

    name: str  # "policy-000020000"
    env_steps: int  # of the run when it was taken
    version: int  # of the weights
    elo: float = 0.0
    games: float = 0.0  # that the newest policies have played against it, the later ones counting most
    score: float = 0.0  # theirs of these

    @property
    def win_rate(self) -> float:
        """How often the newest policy beats it, draws half; ½ before the first game."""
        return (self.score + 0.5) / (self.games + 1.0)

    def played(self, score: float, games: int) -> None:
        """Enter a match of the newest policy with it: its mean score over ``games``."""
        self.games += games
        self.score += score * games
        if self.games > MEMORY:
            self.score, self.games = self.score * MEMORY / self.games, MEMORY


@dataclass
class Ratings:
    """What is known of a pool: its policies, oldest first. The first one's Elo stays 0."""

    elo: float = 0.0  # of the newest policy
    version: int = 0  # of its weights
    matches: int = 0
    members: list[Member] = field(default_factory=list)

    def leaving(self, size: int) -> Member | None:
        """Who is to leave a pool of at most ``size``: of all but the first and the last, whom the newest policy beats
        most often; None: there is room."""
        if len(self.members) <= size:
            return None
        return max(self.members[1:-1], key=lambda member: member.win_rate)


class OpponentPool:
    """The pool of one run folder.

    Args:
        fence: of whoever writes; None: for reading.
    """

    def __init__(self, run: Path, fence: Fence | None = None) -> None:
        self.path = Path(run) / FOLDER
        self._fence = fence

    def file(self, name: str) -> Path:
        """Where the weights of a policy lie."""
        return self.path / f"{name}.safetensors"

    def ratings(self) -> Ratings | None:
        """What is known; None: there is no pool yet.

        Raises:
            SnapshotError: the file is there, but is none of ours.
        """
        path = self.path / RATINGS
        try:
            if not path.exists():
                return None
            return _understood(json.loads(read_text(path, _MOST_BYTES)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SnapshotError(
                f"cannot read {path}: {error}. Put back a copy, or move the folder {FOLDER} away: the pool then begins "
                "anew"
            ) from error

    def weights(self, name: str) -> dict[str, Array]:
        """The weights of a policy.

        Raises:
            SnapshotError: they are not there, or cannot be read.
        """
        return checkpoint.load(self.file(name)).arrays

    def put_newest(self, weights: Mapping[str, Array], version: int, env_steps: int) -> None:
        """Replace the newest policy. Raises as ``checkpoint.save``."""
        self._write(NEWEST, weights, version, env_steps)

    def add(self, weights: Mapping[str, Array], member: Member) -> None:
        """Write the weights of a new policy; it belongs to the pool once ``put_ratings`` names it."""
        self._write(member.name, weights, member.version, member.env_steps)

    def put_ratings(self, ratings: Ratings) -> None:
        """Replace what is known, then remove the weights of those that it does not name."""
        text = json.dumps({"format": _FORMAT, **asdict(ratings)}, indent=1) + "\n"
        self.path.mkdir(parents=True, exist_ok=True)
        check = (lambda: None) if self._fence is None else self._fence.check
        replace_text(self.path / RATINGS, text, check)
        named = {f"{member.name}.safetensors" for member in ratings.members}
        for path in self.path.glob("policy-*.safetensors"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _write(self, name: str, weights: Mapping[str, Array], version: int, env_steps: int) -> None:
        checkpoint.save_weights(self.file(name), weights, {"version": version, "env_steps": env_steps}, self._fence)


def _understood(values: Any) -> Ratings:
    if values["format"] != _FORMAT:
        raise ValueError(f"its format is {values['format']!r}, and this apexrl reads {_FORMAT}")
    if len(values["members"]) > _MOST_MEMBERS:
        raise ValueError(f"it names {len(values['members'])} policies")
    members = [
        Member(str(one["name"]), int(one["env_steps"]), int(one["version"]), *_numbers(one))
        for one in values["members"]
    ]
    for member in members:
        if member.name != f"policy-{member.env_steps:09d}":
            raise ValueError(f"it names a policy {member.name!r}")
    elo = float(values["elo"])
    if not math.isfinite(elo):
        raise ValueError(f"the Elo rating is {elo}")
    return Ratings(elo, int(values["version"]), int(values["matches"]), members)


def _numbers(one: Mapping[str, Any]) -> tuple[float, float, float]:
    elo, games, score = (float(one[name]) for name in ("elo", "games", "score"))
    if not (math.isfinite(elo) and 0.0 <= score <= games <= MEMORY):
        raise ValueError(f"policy {one['name']!r} has Elo {elo} and the score {score} of {games} games")
    return elo, games, score
