"""Decides which certificates a model's server may show."""

from __future__ import annotations

import errno
import os
import ssl
import sys
from pathlib import Path

from agentcli.llm.errors import ConnectionFailed

# Where systems keep what they trust, for an OpenSSL that was built to look elsewhere.
BUNDLES = (
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
)


def tls_context() -> ssl.SSLContext:
    """Trusts SSL_CERT_FILE or SSL_CERT_DIR alone where one is set, else what the system trusts.

    Raises `ConnectionFailed` where what is set cannot be read.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        context = _context_of(file, folder)
    elif sys.platform in ("darwin", "win32"):
        from truststore import SSLContext

        system: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context = system
    else:
        context = ssl.create_default_context(cafile=_bundle())
    context.set_alpn_protocols(["http/1.1"])
    return context


def _context_of(file: str | None, folder: str | None) -> ssl.SSLContext:
    name, value = ("SSL_CERT_FILE", file) if file else ("SSL_CERT_DIR", folder)
    try:
        if not file and not Path(folder or "").is_dir():  # OpenSSL would say nothing and trust nobody
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder")
        return ssl.create_default_context(cafile=file or None, capath=None if file else folder)
    except OSError as error:  # SSLError is one
        why = "it holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise permanent_connection_error(
            f"{name} is {value}, which cannot be used ({why}). Correct {name} (certificates in PEM form), or unset it."
        ) from error


def untrusted_certificate_error(where: str, why: str) -> ConnectionFailed:
    """The error for a server whose certificate is not trusted; another try would end alike."""
    name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), "")
    remedy = (
        f"Add the certificate of its authority to {name} ({os.environ[name]})."
        if name
        else "If you trust it, set SSL_CERT_FILE to a PEM file that holds the certificate of its authority, "
        "beside the others you need."
    )
    return permanent_connection_error(f"The certificate of {where} is not trusted ({why.rstrip('.')}). {remedy}")


def permanent_connection_error(message: str) -> ConnectionFailed:
    """The error for a connection that will fail until something is changed here."""
    error = ConnectionFailed(message)
    error.is_retryable = False
    return error


def _bundle() -> str | None:
    """A bundle of the system where OpenSSL's own places hold none."""
    places = ssl.get_default_verify_paths()
    if places.cafile or (places.capath and any(Path(places.capath).iterdir())):
        return None
    return next((bundle for bundle in BUNDLES if Path(bundle).is_file()), None)
