"""Messages of actor hosts, added up on their way to the learner's ledger: there may be a thousand hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from apexrl.protocols import Context
from apexrl.roles.uplink import COUNTED
from apexrl.run.episode_metrics import Spreads, told_spreads

if TYPE_CHECKING:
    from apexrl.links.redis.members import Message

ORDERS: Final = ("drained", "scaled")
"""Kinds of messages: what a host does because somebody told it to."""

_MOST_TEXT = 2000  # characters of one message
_MOST_LINES = 8  # of one report, in the terminal and the log
_MOST_NAMED = 3  # hosts that say the same
_EPISODES_SINGLY = 1000  # of one report


class HostMessages:
    """Passes on the messages of hosts, added up, once per report.

    Attributes:
        heard: episodes and warnings that came.
        drained: hosts that have said that they leave because they were asked to.
        dropped: those that hosts say they could not tell of, those that could not be read, and those left out here.
        totals: of hosts with learners of their own, their environment steps and episodes, by name; to be taken out.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.heard = self.drained = self.dropped = 0
        self.totals: dict[str, list[int]] = {}

    def pass_on(self, messages: Iterable[Message]) -> None:
        """One message about all episodes, and a line for every different warning, as far as there is room."""
        returns: list[float] = []
        lengths: list[float] = []
        count, sum_returns, sum_lengths = 0, 0.0, 0.0
        metrics = Spreads()
        warnings: dict[tuple[str, str], dict[str, int]] = {}
        for member, kind, values in messages:
            things = _whole(values.get("count")) or 0  # that it tells of
            if kind == "episodes" and things and (said := _episodes(values, things)):
                returns += said[0]
                lengths += said[1]
                count += things
                sum_returns += things * said[2]
                sum_lengths += things * said[3]
                metrics.merge(told_spreads(values.get("metrics")))
            elif kind == "log" and things and isinstance(values.get("text"), str):
                level = "error" if values.get("level") == "error" else "warning"
                hosts = warnings.setdefault((level, values["text"][:_MOST_TEXT]), {})
                hosts[member] = hosts.get(member, 0) + things
            elif kind in ORDERS and things == 1 and isinstance(values.get("text"), str):
                self.heard += 1
                self.drained += kind == "drained"
                self._context.send("log", text=f"{member} was {values['text'][:_MOST_TEXT]}", level="warning")
            elif kind == "totals" and (totals := [_whole(values.get(name)) for name in COUNTED]) and None not in totals:
                self.totals[member] = [total for total in totals if total is not None]
            elif kind == "dropped" and things:
                self.dropped += things
            else:
                self.dropped += max(1, things)
        if count:
            self.heard += count
            said_singly: dict[str, Any] = {
                "returns": returns[-_EPISODES_SINGLY:],
                "lengths": lengths[-_EPISODES_SINGLY:],
            }
            if count > len(said_singly["returns"]):
                means = {"mean_return": sum_returns / count, "mean_length": sum_lengths / count}
                said_singly |= {"count": count, **means}
            if told := metrics.take():
                said_singly["metrics"] = told
            self._context.send("episodes", **said_singly, env_steps=self._context.total("env_steps"))
        self._warn(warnings)

    def _warn(self, warnings: dict[tuple[str, str], dict[str, int]]) -> None:
        self.heard += sum(sum(hosts.values()) for hosts in warnings.values())
        order = sorted(warnings.items(), key=lambda one: (one[0][0] != "error", -len(one[1])))
        for (level, text), hosts in order[:_MOST_LINES]:
            named = ", ".join(sorted(hosts)[:_MOST_NAMED])
            who = f"{named} and {len(hosts) - _MOST_NAMED} other hosts" if len(hosts) > _MOST_NAMED else named
            times = sum(hosts.values())
            often = f" ({times} times)" if times > len(hosts) else ""
            self._context.send("log", text=f"{who}: {text}{often}", level=level)
        if rest := order[_MOST_LINES:]:
            left_out = sum(sum(hosts.values()) for _, hosts in rest)
            of = len({host for _, hosts in rest for host in hosts})
            text = f"{left_out} other warnings of {of} hosts are left out here; see their own logs"
            self._context.send("log", text=text, level="warning")
            self.heard -= left_out
            self.dropped += left_out


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _episodes(values: dict[str, Any], count: int) -> tuple[list[float], list[float], float, float] | None:
    """(returns, lengths, their means over all), or None: it comes from another host, and is none."""
    singly = values.get("returns"), values.get("lengths")
    means = [values.get("mean_return"), values.get("mean_length")]
    returns, lengths = (_numbers(one) for one in singly)
    if returns is None or lengths is None or len(returns) != len(lengths) or len(returns) > count:
        return None
    fine = _numbers(means)
    return None if fine is None else (returns, lengths, fine[0], fine[1])


def _numbers(values: Any) -> list[float] | None:
    """A list of finite numbers as it is."""
    fine = isinstance(values, list) and all(_number(one) for one in values)
    return values if fine else None


def _number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e300
    )
