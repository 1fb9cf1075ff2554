"""The settings there are, with their defaults and limits; each group is a struct that checks itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from agentcli.settings.terminal import TerminalSettings

Positive = Annotated[int, Meta(ge=1)]
_A_DAY = 86_400
Seconds = Annotated[float, Meta(ge=0, le=_A_DAY)]
Duration = Annotated[float, Meta(gt=0, le=_A_DAY)]
MODEL_PATTERN, URL_PATTERN = r"^$|^[^/\s]+/\S+$", r"^$|^https?://\S+$"
NAME_PATTERN, PATH_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$", r"^[^\0]*[^\0\s][^\0]*$"
VARIABLE_PATTERN = f"^$|{NAME_PATTERN}"
ModelName = Annotated[str, Meta(pattern=MODEL_PATTERN)]
EnvName = Annotated[str, Meta(pattern=VARIABLE_PATTERN)]
Url = Annotated[str, Meta(pattern=URL_PATTERN)]
Usd = Annotated[float, Meta(gt=0, le=1_000_000)]
Variable = Annotated[str, Meta(pattern=NAME_PATTERN)]
PathText = Annotated[str, Meta(pattern=PATH_PATTERN)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Strategy = Literal["auto", "truncate", "extract", "summarize"]
Sampling = Literal["always", "50%", "10%", "1%", "never"]
LogOutput = Literal["file", "stderr"]
Timeout = Annotated[float, Meta(gt=0, le=60)]

Charset = Literal[
    "shift_jis", "euc-jp", "gbk", "gb18030", "big5", "euc-kr", "koi8-r", "koi8-u",
    "windows-1250", "windows-1251", "windows-1252", "iso-8859-1", "iso-8859-2", "iso-8859-15"
]  # fmt: skip


class ProviderSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`model` is `provider/model`; empty means the first that is found. `read_timeout` is seconds of silence.

    `transport` is what carries requests to Anthropic: our own HTTP client, or Anthropic's SDK.
    """

    model: ModelName = ""
    fallback_model: ModelName = ""
    read_timeout: Duration = 600.0
    anthropic_version: str = ""
    transport: Literal["http", "sdk"] = "http"


class ServerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A server that speaks Chat Completions, or a bundled provider's other address. `quirks`: see docs/providers.md.

    `api_key_helper` is a command that prints the key, `key_header` the header that carries it.
    """

    base_url: Url = ""
    api_key_env: EnvName = ""
    api_key_helper: str = ""
    key_header: str = ""
    needs_key: bool | None = None
    headers: dict[str, str] = {}
    quirks: dict[str, Any] = {}


class TokenSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`max_output` bounds a reply. `temperature` is left out where an API refuses it.

    `encoders` is a TOML or YAML file that says how tokens are counted: see docs/providers.md.
    """

    max_output: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    ollama_num_ctx: Positive = 32_768
    encoders: str = ""


class RetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`max` retries after the first try; the first wait in seconds, doubled each time up to a minute.

    By default a service that is overloaded or out of reach is tried for a minute and a half at least.
    """

    max: Annotated[int, Meta(ge=0, le=20)] = 7
    initial_delay: Seconds = 1.0


class CompactionSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The conversation is compacted before a request that would fill the share `at` of the model's window.

    From `warn_at` on you are told how full it is. It shrinks to the share `target`, at most three quarters of `at`; the
    newest `keep_turns` turns stay whole. `cooldown` requests pass before it is compacted again. `strategy = "auto"`
    does nothing below `min_messages` messages, truncates, then extracts; from `summary_messages` on a summary takes the
    place of extracting, if a model has written it in the background for less than `summary_usd_per_hour`.

    Truncating leaves `result_chars` characters of an old result and `message_chars` of any other message. Extracting
    leaves notes for `low_turns` turns and thoughts for `medium_turns`. Your own messages always stay.

    `summary_model` writes summaries (unset: the model of the session; a small one never does), one for each turn of up
    to `summary_words` words and `summary_tokens` tokens. One that takes over `summary_timeout` seconds is not waited
    for. Summaries are reused for `cache_hours` hours, up to `cache_entries` of them. `enable_llm_summarization = false`
    switches them off. `summary_share` is no longer used.
    """

    at: Share = 0.8
    warn_at: Share = 0.7
    target: Share = 0.35
    strategy: Strategy = "auto"
    keep_turns: Annotated[int, Meta(ge=1)] = 5
    cooldown: Count = 3
    min_messages: Count = 20
    result_chars: Count = 200
    message_chars: Count = 100
    low_turns: Count = 3
    medium_turns: Count = 5
    enable_llm_summarization: bool = True
    summary_messages: Count = 50
    summary_model: ModelName = ""
    summary_words: Annotated[int, Meta(ge=20)] = 300
    summary_tokens: Annotated[int, Meta(ge=50)] = 500
    summary_share: Share = 0.1
    summary_timeout: Annotated[float, Meta(gt=0, le=600)] = 10.0
    summary_usd_per_hour: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.10
    cache_hours: Annotated[float, Meta(gt=0, le=87_600)] = 24.0
    cache_entries: Annotated[int, Meta(ge=1)] = 1_000


class MemorySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The model's notes on a project, in the state folder: how large a file, how large and how many all may be."""

    enabled: bool = True
    max_file_kb: Positive = 64
    max_total_kb: Positive = 1_024
    max_files: Positive = 200


class ToolSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`only` names the tools a model gets (empty: all). `max_parallel` bounds reading calls that run together.

    `output_level` is how detailed results are, `output_levels` the same for single tools by name. `charset` is that of
    files that are not UTF-8.
    """

    only: tuple[str, ...] = ()
    max_parallel: Annotated[int, Meta(ge=1, le=64)] = 8
    output_level: Literal["brief", "standard", "full"] = "standard"
    output_levels: dict[str, Literal["brief", "standard", "full"]] = {}
    charset: Charset | None = None


class SkillSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Skills: folders with a SKILL.md. With `bundled` the model may use those that agentcli brings, too.

    `off` names skills that are not used at all. Their names and descriptions take `share` of the window at most.
    """

    enabled: bool = True
    bundled: bool = False
    off: tuple[str, ...] = ()
    share: Annotated[float, Meta(gt=0, le=0.5)] = 0.02


class AgentSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Subagents: `max_turns` bounds the requests of each; `models` names one for a kind: `explore = "…"`."""

    enabled: bool = True
    max_turns: Positive = 50
    models: dict[str, ModelName] = {}


class MCPSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """MCP servers, which are named in `mcp_servers`. Their tools take `share` of the window at most.

    A window of more than 200,000 tokens counts as that. `call_timeout_s` bounds a call of a server that has no
    `timeout` of its own.
    """

    enabled: bool = True
    share: Annotated[float, Meta(gt=0, le=0.5)] = 0.02
    call_timeout_s: Duration = 300.0


class DataSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Long results are kept in files: `max_age_hours` from when they were made, `max_size_gb` of them together.

    What a stored session names stays. Every `clean_every_minutes` the rest is seen to.
    """

    max_age_hours: Annotated[float, Meta(gt=0, le=87_600)] = 24.0
    max_size_gb: Annotated[float, Meta(gt=0, le=1_000_000)] = 10.0
    clean_every_minutes: Annotated[float, Meta(ge=0, le=525_600)] = 60.0


class CheckpointSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The workspace is recorded, so that changes can be undone, also those that commands make.

    Files of more than `largest_mb` are left out, and so is a folder of more than `most_files` or `most_gb` as a whole.
    Of what git ignores at most `ignored_files` and `ignored_mb` are recorded. `exclude` holds globs of names and paths.
    """

    enabled: bool = True
    largest_mb: Annotated[float, Meta(gt=0, le=10_000)] = 50.0
    most_files: Positive = 200_000
    most_gb: Annotated[float, Meta(gt=0, le=10_000)] = 5.0
    ignored_files: Count = 5_000
    ignored_mb: Annotated[float, Meta(ge=0, le=10_000)] = 50.0
    exclude: tuple[str, ...] = ()


class EvidenceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """With `show` the terminal tells after each answer what the log says of its claims."""

    show: bool = True


class PermissionSettings(Struct, frozen=True, forbid_unknown_fields=True, rename={"tries": "try"}, kw_only=True):
    """With `try`, commands run as dry runs where that works; what they changed is asked about."""

    mode: Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"] = "default"
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    additional_directories: tuple[PathText, ...] = ()
    tries: bool = True


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Commands are confined. `hosts` may be reached (`example.org`, `*.example.org`, with or without a port).

    `environment` names variables that commands see although they look like credentials. `writable` are further folders
    commands may write, `masked` further files they may not read. `docker_image` is what `kind = "docker"` runs them in.
    """

    profile: Literal["read-only", "workspace-write", "danger-full-access"] = "workspace-write"
    kind: Literal["auto", "bubblewrap", "landlock", "docker"] = "auto"
    hosts: tuple[str, ...] = ()
    environment: tuple[Variable, ...] = ()
    writable: tuple[PathText, ...] = ()
    masked: tuple[PathText, ...] = ()
    docker_image: str = ""


class WebSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`hosts` may be fetched although they are on this machine or a local network, such as `localhost:3000`."""

    hosts: tuple[str, ...] = ()


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`max_turns` counts requests of one prompt. Unset: 100 in the terminal, which asks then, and 25 elsewhere.

    A run without a terminal in which nothing has happened for `idle_s` seconds ends with exit code 1. A single reply is
    cancelled beyond `max_reply_mb` of text, reasoning and calls, beyond `max_arguments_mb` of its calls' arguments, or
    when it has not ended after `max_reply_s` seconds. With `wait_for_reset` a usage limit whose end the provider names
    is waited for, once a prompt, also after a restart.
    """

    max_turns: Positive | None = None
    max_reply_mb: Annotated[float, Meta(gt=0, le=1_000)] = 8.0
    max_arguments_mb: Annotated[float, Meta(gt=0, le=1_000)] = 4.0
    max_reply_s: Duration = 3_600.0
    wait_for_reset: bool = False
    idle_s: Duration = 600.0
    max_budget_usd: Usd | None = None


class BudgetSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a turn, a session and a day in US dollars, tokens, seconds of requests and calls, and calls.

    The worst case is reserved before each request: its reply gets shorter where little is left, and below 1,024 tokens
    it is not sent. The terminal then asks whether there is more; elsewhere the run ends (exit code 54). Calls that run
    are not cut short. Where a price is not known no budget in money holds, which is said. `limits.max_budget_usd` is
    one of the session, too; the smaller one holds. A day is one of this machine's calendar, over all its sessions.
    From the share `warn_at` on it is said once; from `fallback_at` of a budget in money on `fallback_model` answers.
    """

    turn_usd: Usd | None = None
    turn_tokens: Positive | None = None
    turn_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    turn_calls: Positive | None = None
    session_usd: Usd | None = None
    session_tokens: Positive | None = None
    session_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    session_calls: Positive | None = None
    day_usd: Usd | None = None
    day_tokens: Positive | None = None
    day_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    day_calls: Positive | None = None
    warn_at: Share = 0.8
    fallback_model: ModelName = ""
    fallback_at: Share = 0.8


class ObservabilitySettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The export over OTLP ([telemetry.md](telemetry.md)), and the program's log.

    `traces` and `metrics` are sent to `endpoint` (unset: `OTEL_EXPORTER_OTLP_ENDPOINT`, else `http://localhost:4318`)
    with these `headers`. `sampling` is the share of turns that are traced. Prompts, answers, arguments and results
    leave the machine only with `content`. `batch` spans are sent together, metrics every `metric_interval` seconds;
    `export_timeout` and `metrics_timeout` are seconds. `service`, `environment` and `tags` name the resource.

    The log is `logs/agentcli.log` in the state folder. A file of `log_max_mb` is put aside; `log_keep` older ones stay.
    """

    traces: bool = False
    metrics: bool = False
    sampling: Sampling = "10%"
    content: bool = False
    endpoint: Url = ""
    headers: dict[str, str] = {}
    compression: Literal["gzip", "none"] = "gzip"
    batch: Annotated[int, Meta(ge=1, le=2_048)] = 100
    export_timeout: Timeout = 5.0
    metrics_timeout: Timeout = 3.0
    metric_interval: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    service: str = "agentcli"
    environment: str = ""
    tags: dict[str, str] = {}
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["text", "json"] = "text"
    log_outputs: tuple[LogOutput, ...] = ("file",)
    log_max_mb: Annotated[float, Meta(gt=0, le=10_000)] = 10.0
    log_keep: Annotated[int, Meta(ge=1, le=100)] = 3


class ServeTokenSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A further token of `agentcli serve`: `sha256` is its hash. Its holder sees the sessions of `user_id` alone.

    They may cost `budget_usd` on a day, on each machine.
    """

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    user_id: Annotated[str, Meta(pattern=r"\S")]
    rate_per_minute: Positive = 600
    budget_usd: Usd | None = None


class ServeSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`agentcli serve`. `hosts` are names of this machine by which it may be called, beside localhost.

    `database` (postgresql://…) and `redis` (redis://…) hold sessions and events for servers on several machines, which
    reach each other at `advertise`, an address or name of this one. `rate_per_minute` and `budget_usd` (of a day) are
    those of the token in the token file, `tokens` further ones by name. A session nobody uses is closed after
    `idle_minutes`.
    """

    hosts: tuple[str, ...] = ()
    database: Annotated[str, Meta(pattern=r"^$|^postgres(ql)?://\S+$")] = ""
    redis: Annotated[str, Meta(pattern=r"^$|^rediss?://\S+$")] = ""
    advertise: str = ""
    rate_per_minute: Positive = 1_200
    budget_usd: Usd | None = None
    tokens: dict[str, ServeTokenSettings] = {}
    idle_minutes: Annotated[float, Meta(gt=0, le=1_440)] = 10.0


class LocalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The embedded model: `model` is a GGUF file (empty: the installed one), `context` its window in tokens.

    `linger` is how many seconds its server outlives its last user, where 4 GB of memory are free; 0: not at all.
    """

    model: str = ""
    context: Annotated[int, Meta(ge=512)] = 8_192
    linger: Seconds = 300.0


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All groups. `models` holds rows like those of models.toml, by provider and id, `hooks` commands by event.

    `mcp_servers` holds MCP servers by name, with the keys of `.mcp.json`.
    """

    provider: ProviderSettings = ProviderSettings()
    providers: dict[str, ServerSettings] = {}
    tokens: TokenSettings = TokenSettings()
    retry: RetrySettings = RetrySettings()
    compaction: CompactionSettings = CompactionSettings()
    memory: MemorySettings = MemorySettings()
    tools: ToolSettings = ToolSettings()
    skills: SkillSettings = SkillSettings()
    agents: AgentSettings = AgentSettings()
    mcp: MCPSettings = MCPSettings()
    data: DataSettings = DataSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    permissions: PermissionSettings = PermissionSettings()
    sandbox: SandboxSettings = SandboxSettings()
    web: WebSettings = WebSettings()
    limits: LimitSettings = LimitSettings()
    budgets: BudgetSettings = BudgetSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    terminal: TerminalSettings = TerminalSettings()
    local: LocalSettings = LocalSettings()
    serve: ServeSettings = ServeSettings()
    models: dict[str, dict[str, dict[str, Any]]] = {}
    hooks: dict[str, Any] = {}
    mcp_servers: dict[str, Any] = {}
