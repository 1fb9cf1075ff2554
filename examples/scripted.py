"""Makes a scripted model for the examples, so that they run without a key."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any


def scripted(*replies: dict[str, Any]) -> str:
    """The name of a model that gives these replies."""
    file = Path(tempfile.mkdtemp(prefix="agentcli-example-"), "script.jsonl")
    file.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    return f"scripted/{file}"
