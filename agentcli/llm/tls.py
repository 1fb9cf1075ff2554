"""Decides which certificates a model's server may show."""

from __future__ import annotations

import os
import ssl
import sys
from importlib import import_module
from pathlib import Path

# Where systems keep what they trust, for an OpenSSL that was built to look elsewhere.
BUNDLES = (
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
)


def tls_context() -> ssl.SSLContext:
    """Trusts SSL_CERT_FILE or SSL_CERT_DIR alone where one is set, else what the system trusts."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        context = ssl.create_default_context(cafile=file or None, capath=None if file else folder)
    elif sys.platform in ("darwin", "win32"):
        system: ssl.SSLContext = import_module("truststore").SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context = system
    else:
        context = ssl.create_default_context(cafile=_bundle())
    context.set_alpn_protocols(["http/1.1"])
    return context


def _bundle() -> str | None:
    """A bundle of the system where OpenSSL's own places hold none."""
    places = ssl.get_default_verify_paths()
    if places.cafile or (places.capath and any(Path(places.capath).iterdir())):
        return None
    return next((bundle for bundle in BUNDLES if Path(bundle).is_file()), None)
