"""Turns an answer into a response of Chat Completions (openai 3.52) or Messages (anthropic 2.11), for proxies."""

from __future__ import annotations

import time
import uuid
from typing import Any

from agentcli.agent.events import Done
from agentcli.agent.result import usage_object

_CUT = ("max_tokens", "max_turns", "max_budget")  # ends that leave an answer unfinished


def to_chat_completion(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `chat.completion` object, with the usage of all its requests; "length" if it was cut."""
    used = done.usage
    return {
        "id": id or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": done.text, "refusal": None},
                "finish_reason": "length" if done.reason in _CUT else "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.context_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cache_read_input_tokens},
        },
    }


def to_anthropic_message(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `message` object, with the usage of all its requests; "max_tokens" if a limit cut it."""
    return {
        "id": id or f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": done.text}] if done.text else [],
        "stop_reason": "max_tokens" if done.reason in _CUT else "end_turn",
        "stop_sequence": None,
        "usage": usage_object(done.usage),
    }
