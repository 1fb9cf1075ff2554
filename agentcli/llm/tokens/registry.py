"""Knows for each model how its tokens are counted: by which encoder, with which safety margin, or by a server."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentcli.errors import ConfigError, did_you_mean
from agentcli.llm.models import ModelInfo
from agentcli.llm.tokens.families import Family, TokenEncoder, family_of
from agentcli.settings.files import read_small_file

UNKNOWN = "unknown"
BUNDLED_ENCODERS = ("cl100k_base", "o200k_base", "tiktoken", "bytes")


class EncoderRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the tokens of some models are counted.

    A count is what `encoder`, made with `parameters`, says times `margin`: rather too many than too few. `counter` is
    the address of a server that counts exactly: it is sent `{"model", "text"}` and answers `{"tokens"}`. It is asked
    unless `exact` is false, and where it fails the encoder counts.
    """

    encoder: str = "cl100k_base"
    margin: Annotated[float, Meta(ge=1, le=100)] = 1.2
    parameters: dict[str, Any] = {}
    counter: Annotated[str, Meta(pattern=r"^$|^https?://\S+$")] = ""
    exact: bool = True

    @property
    def mode(self) -> Literal["exact", "estimate"]:
        return "exact" if self.counter and self.exact else "estimate"


class ModelFacts(ModelInfo, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A model with how its tokens are counted."""

    family: Family
    encoder: str
    margin: float
    mode: Literal["exact", "estimate"]


class Encoders:
    """Rows by the name of a model, a pattern (`gpt-4*`), a family, and one for unknown models; looked up in this order.

    Names are compared in small letters, with and without their provider. Of patterns that match, the one registered
    last counts, of the bundled ones the first.
    """

    def __init__(self, rows: Mapping[str, EncoderRow] = {}, *, below: Encoders | None = None) -> None:
        self._own = dict(rows)
        self._below = below
        self._made: dict[str, TokenEncoder] = below._made if below else {}  # noqa: SLF001 - one set of encoders

    def row(self, model: str) -> EncoderRow:
        """How the tokens of `model` or `provider/model` are counted."""
        names, rows = _names_of(model), self._rows
        for name in names:
            if name in rows:
                return rows[name]
        for pattern, row in rows.items():
            if _is_pattern(pattern) and any(fnmatchcase(name, pattern) for name in names):
                return row
        return rows.get(family_of(model)) or rows[UNKNOWN]

    @property
    def _rows(self) -> dict[str, EncoderRow]:
        """The own rows, and those below that have no own one of their name."""
        below = self._below._rows if self._below else {}  # noqa: SLF001
        return self._own | {name: row for name, row in below.items() if name not in self._own}

    def register(self, models: str, encoder: str | TokenEncoder = "", **fields: Any) -> None:
        """Count the tokens of `models` (a name, a pattern, a family or "unknown") with an encoder.

        `fields` are those of an `EncoderRow`; what is not given stays as it was for these models. Raises `ValueError`
        for a wrong one.
        """
        if encoder and not isinstance(encoder, str):
            self._made[encoder.name] = encoder
            encoder = encoder.name
        if encoder:
            fields = {"parameters": {}, **fields, "encoder": encoder}
        key = models.lower()
        key = UNKNOWN if key == "custom" else key
        row = msgspec.convert({**msgspec.to_builtins(self.row(key)), **fields}, EncoderRow)
        known = (*BUNDLED_ENCODERS, *self._made)
        if row.encoder not in known:
            raise ValueError(
                f"no encoder {row.encoder!r}{did_you_mean(row.encoder, known)}; there is {', '.join(known)}"
            )
        self._own = {key: row} | {name: old for name, old in self._own.items() if name != key}

    def with_file(self, file: Path) -> Encoders:
        """These rows, and on top those of a TOML or YAML file: a table for each name, pattern or family.

        Raises `ConfigError`.
        """
        above = Encoders(below=self)
        for models, fields in _tables_of(file).items():
            try:
                above.register(str(models), **msgspec.convert(fields, dict[str, Any]))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{error}.", file=str(file), key=str(models)) from error
        return above

    def encoder(self, row: EncoderRow) -> TokenEncoder:
        """The encoder of a row; making one loads tiktoken. Raises `ConfigError` for parameters it does not take."""
        if row.encoder in self._made:
            return self._made[row.encoder]
        from agentcli.llm.tokens.encoders import make_encoder

        return make_encoder(row.encoder, row.parameters)

    def facts(self, info: ModelInfo) -> ModelFacts:
        name = f"{info.provider}/{info.id}"
        row = self.row(name)
        fields = msgspec.structs.asdict(info)
        return ModelFacts(**fields, family=family_of(name), encoder=row.encoder, margin=row.margin, mode=row.mode)


def _names_of(model: str) -> list[str]:
    """`a/b/c`, `b/c` and `c`."""
    parts = model.lower().split("/")
    return ["/".join(parts[n:]) for n in range(len(parts))]


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _tables_of(file: Path) -> dict[str, Any]:
    """Raises `ConfigError`."""
    try:
        text = read_small_file(file).decode("utf-8-sig")
        tables = _yaml(text) if file.suffix.lower() in (".yaml", ".yml") else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"could not be read ({error.strerror}).", file=str(file), key="tokens.encoders") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"could not be read ({error}).", file=str(file), key="tokens.encoders") from error
    if not isinstance(tables, dict):
        raise ConfigError("holds no tables: write one for each model.", file=str(file), key="tokens.encoders")
    return tables


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


# cl100k and o200k are the encodings of the gpt models themselves (tiktoken's own table, 0.14). The vocabularies of
# Llama 3, Qwen and DeepSeek grew out of ones like cl100k and need a little more of them.
_CL100K, _O200K = EncoderRow("cl100k_base", 1.0), EncoderRow("o200k_base", 1.0)
encoders = Encoders(
    {
        "gpt-4o*": _O200K,
        "gpt-4.1*": _O200K,
        "gpt-4.5*": _O200K,
        "gpt-4*": _CL100K,
        "gpt-3.5*": _CL100K,
        "text-embedding-*": _CL100K,
        "claude": EncoderRow("cl100k_base", 1.15),
        "gpt": _O200K,
        "gemini": EncoderRow("o200k_base", 1.2),
        "glm": EncoderRow("cl100k_base", 1.25),
        "qwen": EncoderRow("cl100k_base", 1.2),
        "llama": EncoderRow("cl100k_base", 1.15),
        "mistral": EncoderRow("cl100k_base", 1.25),
        "deepseek": EncoderRow("cl100k_base", 1.2),
        UNKNOWN: EncoderRow("cl100k_base", 1.2),
    }
)
