"""HTTP without TLS, as servers on this machine speak it: no proxy is asked and no certificates are read, which takes 0.15 s."""

import ssl
from typing import Any

import httpx


def trusts_nobody() -> ssl.SSLContext:
    """A context that refuses every TLS server."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def loopback_client(**options: Any) -> httpx.AsyncClient:
    """A client for `http://127.0.0.1:…`; `options` are those of `httpx.AsyncClient`."""
    return httpx.AsyncClient(trust_env=False, verify=trusts_nobody(), **options)
