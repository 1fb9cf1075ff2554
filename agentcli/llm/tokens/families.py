"""Names the family of a model, whose members read text in much the same tokens, and defines what encodes text."""

from __future__ import annotations

from typing import Literal, Protocol

Family = Literal["claude", "gpt", "gemini", "glm", "qwen", "llama", "mistral", "deepseek", "custom"]

# The first whose word is in the name: a distilled model ("deepseek-r1-distill-qwen") has the tokens of its base.
_WORDS: tuple[tuple[Family, tuple[str, ...]], ...] = (
    ("claude", ("claude", "anthropic")),
    ("gemini", ("gemini", "gemma")),
    ("glm", ("glm", "zhipu", "z-ai")),
    ("qwen", ("qwen", "qwq", "qvq")),
    ("llama", ("llama",)),
    ("mistral", ("mistral", "mixtral", "ministral", "codestral", "devstral", "magistral", "pixtral")),
    ("deepseek", ("deepseek",)),
    ("gpt", ("gpt", "openai", "codex", "davinci")),
)


class TokenEncoder(Protocol):
    """Turns text into the ids of tokens and back. `name` is how rows call it.

    `encode` takes any text, one that holds lone surrogates or the names of special tokens too, and `count` gives the
    length of its answer.
    """

    @property
    def name(self) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def count(self, text: str) -> int: ...


def family_of(model: str) -> Family:
    """The family of `model` or `provider/model`; "custom" where the name does not tell."""
    for name in reversed(model.lower().split("/")):
        name = name.replace("ollama", "")  # it runs models of every family
        if name[:1] == "o" and name[1:2].isdigit():  # o3, o4-mini
            return "gpt"
        for family, words in _WORDS:
            if any(word in name for word in words):
                return family
    return "custom"
