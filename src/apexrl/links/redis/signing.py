"""Signatures of run records, so that write access to the server is not enough to forge one.

HMAC-SHA256, with the token that learner and hosts share, over the encoded record without its signature.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import msgspec

from apexrl.config import convert
from apexrl.config.trust import modules
from apexrl.errors import ConfigError
from apexrl.links.redis.checked_values import GatewayAddress, RunRecord, encode

LEAST_TOKEN: Final = 16
"""Least length of a token, so that it cannot be guessed from a signature."""

_PURPOSE: Final = b"apexrl record\n"  # the same token may also be used for a gateway


def sign(record: RunRecord, token: str) -> RunRecord:
    """``record`` with its signature.

    Raises:
        ConfigError: the token is too short.
    """
    if isinstance(record.learners_gateway, GatewayAddress):
        record = msgspec.structs.replace(record, whole_signature=_signature(record, token, whole=True))
    return msgspec.structs.replace(record, signature=_signature(record, token))


def trusted_modules(record: RunRecord, token: str, trust: Sequence[str], origin: str) -> tuple[str, ...]:
    """``trust``, and with a token all modules that the record names, because the learner's user named them.

    Raises:
        ConfigError: there is a token, but the record is not signed with it.
    """
    given = (trust,) if isinstance(trust, str) else tuple(trust)
    if not token:
        return given
    genuine = hmac.compare_digest(record.signature, _signature(record, token))
    if genuine and isinstance(record.learners_gateway, GatewayAddress):
        genuine = hmac.compare_digest(record.whole_signature or "", _signature(record, token, whole=True))
    if not genuine:
        how = "with another token than this host has" if record.signature else "not"
        raise ConfigError(
            f"the record of {origin} is signed {how}: give the learner and its hosts the same token (--token-file or "
            "APEXRL_TOKEN), or this host none. If they have it, somebody else has written that record"
        )
    return (*given, *modules(convert.from_toml(record.config, f"the record of {origin}"), imports=False))


def _signature(record: RunRecord, token: str, whole: bool = False) -> str:
    if len(token) < LEAST_TOKEN:
        raise ConfigError(f"the token has {len(token)} characters; at least {LEAST_TOKEN} keep others out")
    record = msgspec.structs.replace(record, signature="", whole_signature=msgspec.UNSET)
    if not whole:  # as 0.2 signs, since 0.1 did not know these
        record = msgspec.structs.replace(record, learners_refused=msgspec.UNSET, learners_gateway=msgspec.UNSET)
    said = encode(record)
    return hmac.new(token.encode(), _PURPOSE + said, hashlib.sha256).hexdigest()
