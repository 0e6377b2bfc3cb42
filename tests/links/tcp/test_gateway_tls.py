"""TLS between an inference gateway and its hosts, and what can be wrong with it."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from gateway_rig import RECORD, SECONDS, Place, play, until

from apexrl.errors import ConfigError, LinkError
from apexrl.links.tcp.handshake import UnreachableError
from apexrl.links.tcp.tls import ClientTls, ServerTls, self_signed


class Authority:
    """A certificate authority, with files for both sides."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._ca = trustme.CA()
        self.file = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def pair(self, *names: str, not_after: datetime | None = None) -> tuple[str, str]:
        leaf = self._ca.issue_cert(*names, not_after=not_after)
        files = [str(self._folder / f"{self._name}-{names[0]}-{what}.pem") for what in ("cert", "key")]
        leaf.private_key_pem.write_to_path(files[1])
        Path(files[0]).write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        return files[0], files[1]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "right")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_answers_and_messages_travel_in_tls(
    places: Callable[..., Place], authority: Authority, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places(ServerTls(*authority.pair("127.0.0.1"), ca=authority.file))
    own = authority.pair("a-host")
    tls = ClientTls(ca=authority.file, cert=own[0], key=own[1])
    context = tls.context()
    context.maximum_version = version
    monkeypatch.setattr(ClientTls, "context", lambda self: context)
    end = place.worker(tls)
    assert end._peer is not None
    assert end._peer.encrypted
    for _ in range(20):
        play(place, end)
    host = place.host(tls)
    assert host.connect() == RECORD
    assert host.beat(texts=[("info", "x" * 4000)] * 20).number == 1  # of more than one record
    host.leave()
    end.leave()
    until(lambda: "has left" in place.told[-1])
    assert not any("refused" in text for text in place.told)


def test_a_self_signed_certificate_is_made_once_and_pinned(places: Callable[..., Place], tmp_path: Path) -> None:
    file = tmp_path / "own.pem"
    tls = self_signed(str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert self_signed(str(file)).fingerprint == tls.fingerprint
    place = places(tls)
    digits = tls.fingerprint.removeprefix("sha256:").upper()
    as_openssl_says_it = ":".join(digits[at : at + 2] for at in range(0, 64, 2))
    for generation, fingerprint in enumerate((tls.fingerprint, as_openssl_says_it)):
        end = place.worker(ClientTls(fingerprint=fingerprint), host="localhost", generation=generation)
        play(place, end)
        end.leave()
    other = self_signed(str(tmp_path / "other.pem")).fingerprint
    with pytest.raises(LinkError, match=f"another certificate than .*: its own is {tls.fingerprint}"):
        place.worker(ClientTls(fingerprint=other))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("authority", "is not signed by an authority in --tls-ca"),
        ("dates", r"is out of date \(certificate has expired\): renew it there"),
        ("name", "is for another name .*: connect to the name in it, or pin it with --tls-fingerprint"),
        ("none here", "wants a certificate of this host: give --tls-cert and --tls-key"),
        ("other here", "does not accept this host's certificate"),
        ("plain gateway", "does not speak TLS: leave out --tls-ca and --tls-fingerprint, or start the run with"),
        ("plain worker", "it does not speak TLS, and this run does: give apexrl envs --tls-fingerprint or --tls-ca"),
    ],
)
def test_what_is_wrong_with_tls_is_said_at_once(
    places: Callable[..., Place], authority: Authority, tmp_path: Path, wrong: str, why: str
) -> None:
    elsewhere = Authority(tmp_path, "elsewhere")
    before = datetime.now(UTC) - timedelta(minutes=5)
    name = "another.host" if wrong == "name" else "127.0.0.1"
    pair = authority.pair(name, not_after=before if wrong == "dates" else None)
    tls = ServerTls(*pair, ca=authority.file if wrong.endswith("here") else "")
    place = places(None if wrong == "plain gateway" else tls)
    own = elsewhere.pair("a-host") if wrong == "other here" else ("", "")
    client = ClientTls((elsewhere if wrong == "authority" else authority).file, "", *own)
    began = time.monotonic()
    with pytest.raises(LinkError, match=why) as caught:
        place.worker(None if wrong == "plain worker" else client)
    assert not isinstance(caught.value, UnreachableError)
    assert time.monotonic() - began < SECONDS
    until(lambda: place.told)
    assert "was refused" in place.told[0]
    assert place.gateway.counts.workers == 0


@pytest.mark.parametrize(
    ("content", "flag", "why"),
    [
        (None, "cert", "--tls-cert .* cannot be read: .*No such file"),
        (b"no certificate", "cert", "are no PEM files"),
        (None, "key", "--tls-key .* cannot be read"),
        (b"other", "key", "is not the key of --tls-cert"),
        (b"locked", "key", "has a passphrase"),
        (None, "ca", "--tls-ca .* cannot be read"),
        (b"", "ca", "holds no certificates"),
    ],
)
def test_files_that_are_no_certificates_are_refused(
    authority: Authority, tmp_path: Path, content: bytes | None, flag: str, why: str
) -> None:
    cert, key = authority.pair("127.0.0.1")
    files = {"cert": cert, "key": key, "ca": authority.file}
    files[flag] = str(tmp_path / "wrong.pem")
    if content == b"other":
        content = Path(authority.pair("another")[1]).read_bytes()
    if content == b"locked":
        from cryptography.hazmat.primitives import serialization

        private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
        content = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    if content is not None:
        Path(files[flag]).write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        ServerTls(**files).context()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (ClientTls(cert="x"), "TLS needs --tls-fingerprint"),
        (ClientTls(fingerprint="sha256:12"), "sha256: and 64 hex digits"),
    ],
)
def test_a_host_that_knows_nothing_of_the_run_does_not_connect(given: ClientTls, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        given.context()
