"""TLS between a listening run and other hosts: certificates, and messages about failures."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from apexrl.config.paths import expanded
from apexrl.errors import ConfigError, LinkError

_SELF_SIGNED_DAYS: Final = 3650  # a pinned certificate's dates are not checked
_NEEDS_CRYPTOGRAPHY = (
    "--tls-self-signed makes a certificate with the package cryptography, which is not installed: pip install "
    "'apexrl[tls]'; or make a pair elsewhere (openssl req -x509 -newkey rsa:3072 -nodes) and give --tls-cert, --tls-key"
)
# OpenSSL's numbers of certificate errors
_EXPIRED, _NOT_SIGNED, _OTHER_NAME = (9, 10), (18, 19, 20, 21), (62, 64)


@dataclass(frozen=True)
class ServerTls:
    """The certificate of a listening run. Files in PEM format."""

    cert: str
    """Certificate chain."""
    key: str = ""
    """Its private key; empty: it is in ``cert``."""
    ca: str = ""
    """Authorities that must have signed other hosts' certificates; empty: hosts need none."""

    def context(self) -> ssl.SSLContext:
        """ConfigError: a file is invalid."""
        context = _server_context()
        _load_pair(context, self.cert, self.key)
        if self.ca:
            _load_authorities(context, self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @property
    def fingerprint(self) -> str:
        """Of the certificate, for ``ClientTls``."""
        try:
            return _fingerprint_in(_read(self.cert))
        except (OSError, ValueError) as error:
            raise ConfigError(f"--tls-cert {self.cert} cannot be read: {error}") from None


@dataclass(frozen=True)
class MadeCertificate:
    """A self-signed certificate that the run's launcher made and keeps in memory (``made_certificate``)."""

    pem: str = field(repr=False)
    """With its private key."""

    def context(self) -> ssl.SSLContext:
        """For a server."""
        context = _server_context()
        with tempfile.NamedTemporaryFile() as file:  # OpenSSL reads files alone; nobody else may read this one
            file.write(self.pem.encode())
            file.flush()
            context.load_cert_chain(file.name)
        return context

    @property
    def fingerprint(self) -> str:
        """Of the certificate, for ``ClientTls``."""
        return _fingerprint_in(self.pem)


@dataclass(frozen=True)
class ClientTls:
    """How a host verifies its run: by an authority, or by the certificate's fingerprint."""

    ca: str = ""
    """Authorities, one of which must have signed the run's certificate for the name of the address."""
    fingerprint: str = ""
    """SHA-256 of the run's certificate: ``sha256:`` and 64 hex digits. Without ``ca``, name and dates are not
    checked."""
    cert: str = ""
    """This host's own certificate, for a run that requires one."""
    key: str = ""
    """Its private key; empty: it is in ``cert``."""

    def context(self) -> ssl.SSLContext:
        """ConfigError: a file or the fingerprint is invalid."""
        if not (self.ca or self.fingerprint):
            raise ConfigError("TLS needs --tls-fingerprint, which the run prints when it begins, or --tls-ca FILE")
        if self.fingerprint:
            _digits(self.fingerprint)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca:
            _load_authorities(context, self.ca)
        else:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert:
            _load_pair(context, self.cert, self.key)
        return context

    def check(self, certificate: bytes, where: str) -> None:
        """LinkError: ``certificate`` (DER) is not the pinned one."""
        found = fingerprint_of(certificate)
        if self.fingerprint and not hmac.compare_digest(_digits(found), _digits(self.fingerprint)):
            raise LinkError(
                f"what answers at {where} has another certificate than --tls-fingerprint says: its own is {found}. "
                "Compare with what the run printed when it began; if they differ, it is not that run"
            )


def fingerprint_of(certificate: bytes) -> str:
    """Of a certificate in DER format."""
    return "sha256:" + hashlib.sha256(certificate).hexdigest()


def made_certificate() -> MadeCertificate:
    """A new certificate, which no file holds.

    Raises:
        ConfigError: the package cryptography is not installed.
    """
    return MadeCertificate(_make_pair().decode())


def self_signed(path: str, make: bool = True) -> ServerTls:
    """A self-signed certificate and its key in one file, readable only by its owner.

    Args:
        make: create a missing file.

    Raises:
        ConfigError: the file cannot be created.
    """
    file = expanded(path)
    if make and not file.exists():
        pem = _make_pair()
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return ServerTls(path)
        except OSError as error:
            raise ConfigError(f"--tls-self-signed {path} cannot be made: {error}") from None
        with os.fdopen(handle, "wb") as made:
            made.write(pem)
    return ServerTls(path)


def in_words(error: ssl.SSLError, where: str, tls: ClientTls) -> str:
    """A message for a TLS failure between a host and the gateway at ``where``, with a remedy."""
    reason = (error.reason or str(error)).upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in _EXPIRED:
            return (
                f"the certificate of {where} is out of date ({error.verify_message}): renew it there, or set the clocks"
            )
        if code in _NOT_SIGNED:
            return f"the certificate of {where} is not signed by an authority in --tls-ca {tls.ca}"
        if code in _OTHER_NAME:
            return (
                f"the certificate of {where} is for another name ({error.verify_message}): connect to the name in it, "
                "or pin it with --tls-fingerprint instead of --tls-ca"
            )
        return f"the certificate of {where} is not good: {error.verify_message}"
    if "CERTIFICATE_EXPIRED" in reason:
        return f"{where} says that this host's certificate --tls-cert {tls.cert} has expired"
    if "CERTIFICATE_REQUIRED" in reason or ("HANDSHAKE_FAILURE" in reason and not tls.cert):
        return f"{where} wants a certificate of this host: give --tls-cert and --tls-key"
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason or "DECRYPT_ERROR" in reason:
        return f"{where} does not accept this host's certificate: it is of another authority than its --tls-ca"
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        return (
            f"what answers at {where} does not speak TLS: leave out --tls-ca and --tls-fingerprint, or start the run "
            "with --tls-cert or --tls-self-signed"
        )
    return f"TLS with {where} failed: {error.reason or error}"


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # sessions are not resumed
    return context


def _fingerprint_in(pem: str) -> str:
    """Of the first certificate in ``pem``. ValueError: there is none."""
    found = re.search("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", pem, re.DOTALL)
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(found[0] if found else ""))


def _digits(fingerprint: str) -> str:
    digits = fingerprint.lower().removeprefix("sha256:").replace(":", "").strip()
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ConfigError(f"--tls-fingerprint {fingerprint!r} is none: sha256: and 64 hex digits, as the run prints it")
    return digits


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    def locked() -> NoReturn:
        raise ConfigError(f"--tls-key {key or cert} has a passphrase, and nobody can be asked: store it without one")

    for flag, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path:
            try:
                _read(path)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{flag} {path} cannot be read: {error}") from None
    try:
        context.load_cert_chain(expanded(cert), expanded(key) if key else None, password=locked)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"--tls-key {key} is not the key of --tls-cert {cert}") from None
        where = "" if key else " (without --tls-key it must hold the key, too)"
        raise ConfigError(f"--tls-cert {cert} and its key are no PEM files{where}: {error.reason or error}") from None


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(expanded(ca))
    except ssl.SSLError as error:
        raise ConfigError(f"--tls-ca {ca} holds no certificates in PEM format: {error.reason or error}") from None
    except OSError as error:
        raise ConfigError(f"--tls-ca {ca} cannot be read: {error}") from None


def _read(path: str) -> str:
    return expanded(path).read_text(encoding="ascii", errors="replace")


def _make_pair() -> bytes:
    """A new private key and its certificate, in PEM format."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(_NEEDS_CRYPTOGRAPHY) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "apexrl")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_SELF_SIGNED_DAYS))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate.public_bytes(serialization.Encoding.PEM)
