"""Defines who may use the server."""

from __future__ import annotations

import hashlib

from msgspec import Struct


class Token(Struct, frozen=True):
    """Who may use the server. Without a `user_id` all sessions may be seen, with one only that user's.

    `sha256` is the token's hash in hexadecimal digits, `budget_usd` what its user's sessions may cost on a day.
    """

    sha256: str
    user_id: str = ""
    rate_per_minute: int = 600
    budget_usd: float | None = None


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
