"""Defines the settings with their defaults and limits. Each group is a struct; docs/settings.md shows its docstring."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from agentcli.settings.terminal import TerminalSettings

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Duration = Annotated[float, Meta(gt=0, le=86_400)]
MODEL_PATTERN, URL_PATTERN = r"^$|^[^/\s]\S*[^/\s]$", r"^$|^https?://\S+$"
NAME_PATTERN, PATH_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$", r"^[^\0]*[^\0\s][^\0]*$"
VARIABLE_PATTERN = f"^$|{NAME_PATTERN}"
ModelName = Annotated[str, Meta(pattern=MODEL_PATTERN)]
Url = Annotated[str, Meta(pattern=URL_PATTERN)]
Usd = Annotated[float, Meta(gt=0, le=1_000_000)]
PathText = Annotated[str, Meta(pattern=PATH_PATTERN)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
CHARSETS = (
    *"shift_jis euc-jp gbk gb18030 big5 euc-kr koi8-r koi8-u windows-1250 windows-1251 windows-1252".split(),
    *"iso-8859-1 iso-8859-2 iso-8859-15".split(),
)
CHARSET_PATTERN = f"^({'|'.join(CHARSETS)})$"
Sampling = Literal["always", "50%", "10%", "1%", "never"]
Charset = Annotated[str, Meta(pattern=CHARSET_PATTERN)]


class ProviderSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`model` is `provider/model`, or else the first one found; while plan mode is on, `plan_model` answers instead.

    A request fails after `read_timeout` seconds of silence. `transport` is how requests reach Anthropic: over our own
    HTTP client, or over Anthropic's SDK.
    """

    model: ModelName = ""
    plan_model: ModelName = ""
    fallback_model: ModelName = ""
    read_timeout: Duration = 600.0
    anthropic_version: str = ""
    transport: Literal["http", "sdk"] = "http"


class ServerSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server that speaks Chat Completions, or another address of a bundled provider.

    `api_key_helper` is a command that prints the key, `key_header` its header. For `quirks` see docs/providers.md.
    """

    base_url: Url = ""
    api_key_env: Annotated[str, Meta(pattern=VARIABLE_PATTERN)] = ""
    api_key_helper: str = ""
    key_header: str = ""
    needs_key: bool | None = None
    headers: dict[str, str] = {}
    quirks: dict[str, Any] = {}


class TokenSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`max_output` limits a reply. `temperature` is left out where an API rejects it.

    `encoders` is a TOML or YAML file that defines how tokens are counted: see docs/providers.md.
    """

    max_output: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    ollama_num_ctx: Positive = 32_768
    encoders: str = ""


class RetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A failed request is sent again up to `max` times, first after `initial_delay` seconds, then after twice as long.
    No wait is longer than a minute. By default a service is tried for at least a minute and a half.
    """

    max: Annotated[int, Meta(ge=0, le=20)] = 7
    initial_delay: Seconds = 1.0


class CompactionSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The conversation is compacted before a request that would fill the share `at` of the model's window.

    From `warn_at` on you see how full it is. Compaction shrinks it to the share `target`, at most three quarters of
    `at`; the newest `keep_turns` turns stay whole. `cooldown` requests pass before the next compaction. `strategy =
    "auto"` does nothing below `min_messages` messages, truncates, then extracts. From `summary_messages` on it uses a
    summary instead of extracting, if a model has written one in the background for less than `summary_usd_per_hour`.

    Truncating leaves `result_chars` characters of an old result and `message_chars` of any other message. Extracting
    leaves notes for `low_turns` turns and thoughts for `medium_turns`. Your own messages always stay.

    `summary_model` writes summaries. If it is unset, the small model of the session's provider does where there is a
    cheaper one, `anthropic/small` for instance, else the session's model, unless it runs on this machine. There is one
    summary for each turn, of up to `summary_words` words and `summary_tokens` tokens. A summary that takes over
    `summary_timeout` seconds is not waited for. Summaries are reused for `cache_hours` hours, up to `cache_entries` of
    them. `enable_llm_summarization = false` switches them off. `summary_share` is no longer used.
    """

    at: Share = 0.8
    warn_at: Share = 0.7
    target: Share = 0.35
    strategy: Literal["auto", "truncate", "extract", "summarize"] = "auto"
    keep_turns: Positive = 5
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
    cache_entries: Positive = 1_000


class MemorySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The model keeps notes on each project in the state folder. A file holds up to `max_file_kb`, all files of a
    project up to `max_total_kb`. There are at most `max_files`.
    """

    enabled: bool = True
    max_file_kb: Positive = 64
    max_total_kb: Positive = 1_024
    max_files: Positive = 200


class InstructionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Kinds of instruction files in `off` are not read. `output_style` changes how answers look (context.md)."""

    off: tuple[Literal["agents", "claude", "gemini", "cursor", "copilot", "windsurf", "cline", "aider"], ...] = ()
    output_style: str = ""


class ToolSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`only` names the tools that the model gets; if it is empty, the model gets all of them.

    Up to `max_parallel` calls that only read run together. `output_level` is how detailed results are, `output_levels`
    the same for single tools by name. `charset` is the encoding of files that are not UTF-8.
    """

    only: tuple[str, ...] = ()
    max_parallel: Annotated[int, Meta(ge=1, le=64)] = 8
    output_level: Literal["brief", "standard", "full"] = "standard"
    output_levels: dict[str, Literal["brief", "standard", "full"]] = {}
    charset: Charset | None = None


class SkillSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A skill is a folder with a SKILL.md. With `bundled` the model may also use the skills that come with agentcli.

    Skills named in `off` are not used. Names and descriptions of all skills take at most `share` of the window.
    """

    enabled: bool = True
    bundled: bool = False
    off: tuple[str, ...] = ()
    share: Annotated[float, Meta(gt=0, le=0.5)] = 0.02


class AgentSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A subagent makes at most `max_turns` requests. `models` sets the model of a kind of subagent: `explore = "…"`."""

    enabled: bool = True
    max_turns: Positive = 50
    models: dict[str, ModelName] = {}


class MCPSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """MCP servers are set up in `mcp_servers`. Their tools take at most `share` of the window. A window of more than
    200,000 tokens counts as 200,000. `call_timeout_s` applies to servers without a `timeout`.
    """

    enabled: bool = True
    share: Annotated[float, Meta(gt=0, le=0.5)] = 0.02
    call_timeout_s: Duration = 300.0


class DataSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Long results are kept in files: each for `max_age_hours`, all together up to `max_size_gb`. The results of stored
    sessions always stay. Old files are deleted every `clean_every_minutes`.
    """

    max_age_hours: Annotated[float, Meta(gt=0, le=87_600)] = 24.0
    max_size_gb: Annotated[float, Meta(gt=0, le=1_000_000)] = 10.0
    clean_every_minutes: Annotated[float, Meta(ge=0, le=525_600)] = 60.0


class CheckpointSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The workspace is recorded, so that you can undo changes, also those that commands make.

    Files of more than `largest_mb` are left out, and so is a whole folder of more than `most_files` or `most_gb`. At
    most `ignored_files` and `ignored_mb` of what git ignores are recorded. `exclude` lists globs of names and paths.
    """

    enabled: bool = True
    largest_mb: Annotated[float, Meta(gt=0, le=10_000)] = 50.0
    most_files: Positive = 200_000
    most_gb: Annotated[float, Meta(gt=0, le=10_000)] = 5.0
    ignored_files: Count = 5_000
    ignored_mb: Annotated[float, Meta(ge=0, le=10_000)] = 50.0
    exclude: tuple[str, ...] = ()


class EvidenceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """With `show` the terminal compares each answer's claims with the log and shows the result."""

    show: bool = True


class PermissionSettings(Struct, frozen=True, forbid_unknown_fields=True, rename={"tries": "try"}, kw_only=True):
    """With `try`, commands run as dry runs where that works, and you are asked about what they changed."""

    mode: Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"] = "default"
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    additional_directories: tuple[PathText, ...] = ()
    tries: bool = True


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Commands run in a sandbox. They may reach `hosts`: `example.org` or `*.example.org`, with or without a port.

    `environment` names variables that commands see although they look like credentials. Commands may also write to the
    folders in `writable`, and may not read the files in `masked`. `docker_image` is the image of `kind = "docker"`.
    """

    profile: Literal["read-only", "workspace-write", "danger-full-access"] = "workspace-write"
    kind: Literal["auto", "bubblewrap", "landlock", "docker"] = "auto"
    hosts: tuple[str, ...] = ()
    environment: tuple[Annotated[str, Meta(pattern=NAME_PATTERN)], ...] = ()
    writable: tuple[PathText, ...] = ()
    masked: tuple[PathText, ...] = ()
    docker_image: str = ""


class WebSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`hosts` may be fetched although they are on this machine or a local network, such as `localhost:3000`."""

    hosts: tuple[str, ...] = ()


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A prompt may take `max_turns` requests: by default 100 in the terminal, which then asks you, and 25 elsewhere.

    A run without a terminal ends with exit code 1 after `idle_s` seconds without an event. A reply is cancelled at over
    `max_reply_mb` of text, reasoning and calls, `max_arguments_mb` of arguments, or `max_reply_s` seconds. With
    `wait_for_reset`, a prompt waits once for the end of a usage limit that the provider names, also after a restart.
    """

    max_turns: Positive | None = None
    max_reply_mb: Annotated[float, Meta(gt=0, le=1_000)] = 8.0
    max_arguments_mb: Annotated[float, Meta(gt=0, le=1_000)] = 4.0
    max_reply_s: Duration = 3_600.0
    wait_for_reset: bool = False
    idle_s: Duration = 600.0
    max_budget_usd: Usd | None = None


class BudgetSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a turn, a session and a calendar day: US dollars, tokens, seconds of requests and calls, and calls.

    The worst case is reserved before each request. Where little is left, the reply is limited; below 1,024 tokens the
    request is not sent. Then the terminal asks you whether to go on, and elsewhere the run ends with exit code 54.
    Calls under way are not cut short. If a price is not known, no budget in dollars applies, and a notice says so. The
    session's limit is the smaller of `session_usd` and `limits.max_budget_usd`. At the share `warn_at` a notice comes.
    `fallback_model` and `fallback_at` are no longer used.
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

    `traces` and `metrics` are sent to `endpoint` with these `headers`; if it is unset, to
    `OTEL_EXPORTER_OTLP_ENDPOINT`, else to `http://localhost:4318`. `sampling` is the share of turns that are traced.
    Prompts, answers, arguments and results leave the machine only with `content`. `batch` spans are sent together,
    metrics every `metric_interval` seconds. An export may take `export_timeout` and `metrics_timeout` seconds.
    `service`, `environment` and `tags` describe the resource.

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
    export_timeout: Annotated[float, Meta(gt=0, le=60)] = 5.0
    metrics_timeout: Annotated[float, Meta(gt=0, le=60)] = 3.0
    metric_interval: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    service: str = "agentcli"
    environment: str = ""
    tags: dict[str, str] = {}
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["text", "json"] = "text"
    log_outputs: tuple[Literal["file", "stderr"], ...] = ("file",)
    log_max_mb: Annotated[float, Meta(gt=0, le=10_000)] = 10.0
    log_keep: Annotated[int, Meta(ge=1, le=100)] = 3


class ServeTokenSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A token by its hash. Its holder sees only the sessions of `user_id`: up to `budget_usd` a day on each machine."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    user_id: Annotated[str, Meta(pattern=r"\S")]
    rate_per_minute: Positive = 600
    budget_usd: Usd | None = None


class ServeSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The server (`agentcli serve`). `hosts` are the names of this machine that clients may use, beside localhost.

    `database` (postgresql://…) and `redis` (redis://…) store sessions and events for servers on several machines, which
    reach each other at `advertise`. `rate_per_minute` and `budget_usd` (for a day) apply to the token in the token
    file; `tokens` adds further tokens by name. A session that nobody uses is closed after `idle_minutes`.
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
    """The embedded model. `model` is a GGUF file, or empty for the installed one; `context` is its window in tokens.

    Its server runs for `linger` seconds after its last user has ended; 0 ends it at once.
    """

    model: str = ""
    context: Annotated[int, Meta(ge=512)] = 8_192
    linger: Seconds = 300.0


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings. `models` has rows like models.json's, by provider and id; `hooks` has commands by event.

    `mcp_servers` has MCP servers by name, with the keys of `.mcp.json`.
    """

    provider: ProviderSettings = ProviderSettings()
    providers: dict[str, ServerSettings] = {}
    tokens: TokenSettings = TokenSettings()
    retry: RetrySettings = RetrySettings()
    compaction: CompactionSettings = CompactionSettings()
    memory: MemorySettings = MemorySettings()
    instructions: InstructionSettings = InstructionSettings()
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
