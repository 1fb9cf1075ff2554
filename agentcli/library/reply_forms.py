"""Turns an answer into a response of OpenAI's Chat Completions or Anthropic's Messages, for proxies and servers.

Sources: the response objects of both APIs as their own SDKs read them (openai 3.52, anthropic 2.11).
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from agentcli.agent.events import Done
from agentcli.agent.result import usage_object

_CUT = ("max_tokens", "max_turns", "max_budget")  # ends that leave an answer unfinished


def to_chat_completion(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """The answer as a `chat.completion` object. `usage` is that of all requests it took.

    An answer that a limit cut short has the `finish_reason` "length", any other one "stop".
    """
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
    """The answer as a `message` object. `usage` is that of all requests it took.

    An answer that a limit cut short has the `stop_reason` "max_tokens", any other one "end_turn".
    """
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
