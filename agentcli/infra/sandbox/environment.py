"""The environment that commands see."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(
    r"(_API_KEY|_ACCESS_KEY|_SECRET_KEY|_PRIVATE_KEY|_TOKEN|_SECRET|_PASSWORD|_CREDENTIALS)$"
    r"|^(AWS_ACCESS_KEY_ID|PGPASSWORD|ANTHROPIC_CUSTOM_HEADERS)$"
)


def command_environment(environment: Mapping[str, str], session_id: str) -> dict[str, str]:
    """What a command sees: no credentials, no pagers or editors that would wait for a person."""
    kept = {name: value for name, value in environment.items() if not _SECRET_NAME.search(name)}
    kept |= {"AGENTCLI": "1", "GIT_EDITOR": "true", "GIT_PAGER": "cat", "PAGER": "cat", "TERM": "dumb"}
    if session_id:
        kept["AGENTCLI_SESSION_ID"] = session_id
    return kept
