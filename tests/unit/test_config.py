"""Settings: every group and constraint, what goes over what, and what a project may say."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
import tomli_w

from agentcli.errors import ConfigError, UsageError
from agentcli.settings.check import is_table
from agentcli.settings.files import Paths, current_folder, find_paths, project_root
from agentcli.settings.load import Config, load_config, read_layer
from agentcli.settings.structs import LimitSettings, RetrySettings, ServerSettings, Settings, TokenSettings
from agentcli.settings.trust import PROJECT_FILES, is_trusted, project_digests, project_files, remember_trust
from agentcli.settings.write import to_toml

GROUPS: dict[str, type[msgspec.Struct]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
}
# Every setting but tables of tables, with its type and default.
SETTINGS = {
    f"{group}.{field.encode_name}": (field.type, field.default)
    for group, kind in GROUPS.items()
    for field in msgspec.structs.fields(kind)
    if not is_table(field.type)
}
TEXTS = ("light", "gbk", "a/b", "https://a", "postgresql://a", "redis://a")
VALUES = (True, False, 1, 7, 600, 0.5, 30.0, *TEXTS, *((text,) for text in TEXTS), *({"a": text} for text in TEXTS))


def choices(kind: Any) -> tuple[Any, ...]:
    """The values of closed lists anywhere in a type."""
    return get_args(kind) if get_origin(kind) is Literal else sum(map(choices, get_args(kind)), ())


def fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def other(key: str) -> Any:
    """A value of a setting that is not its default."""
    kind, default = SETTINGS[key]
    closed = choices(kind)
    tried = (*VALUES, *closed, *((value,) for value in closed), *({"a": value} for value in closed))
    return next(value for value in tried if fits(value, kind) and value != default and value is not None)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return find_paths(str(tmp_path / "home"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / ".agentcli").mkdir()
    return folder


def write(file: Path, text: str | dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if isinstance(text, str) else tomli_w.dumps(text), "utf-8")
    return file


def load(paths: Paths, project: Path, environment: dict[str, str] | None = None, **how: Any) -> Config:
    return load_config(project, environment or {}, paths=paths, **how)


# Saved and loaded it is equal.


ODD = 'a "b" \\ \n\t\u0130 = # ]'
TABLES = Settings(
    providers={
        ODD: ServerSettings(base_url="http://127.0.0.1:8080/v1", api_key_env="MY_KEY", headers={ODD: ODD}),
        "local": ServerSettings(base_url="http://a", needs_key=False, quirks={"a": [1, {ODD: True}], "b": {"c": "d"}}),
    },
    models={"openai": {"gpt-6.1": {"window": 9, "prices": {"input": 0.5}}, ODD: {"thinking": "none"}}},
)


@pytest.mark.parametrize("key", [*SETTINGS, "tables"])
def test_settings_that_are_saved_and_loaded_are_equal(key: str, tmp_path: Path) -> None:
    group, _, name = key.partition(".")
    value = TABLES if key == "tables" else msgspec.convert({group: {name: msgspec.to_builtins(other(key))}}, Settings)
    layer = read_layer(write(tmp_path / "config.toml", to_toml(value)))
    assert msgspec.convert(layer.values, Settings) == value != Settings()


def test_the_defaults_save_as_nothing() -> None:
    assert to_toml(Settings()) == ""


# Constraints.

WRONG: list[tuple[str, Any, str]] = [
    ("provider.transport", "pigeon", "http, sdk"),
    ("retry.max", 1.5, "Expected `int`"),
    ("tools.only", "bash", "Expected `array`"),
    ("tools.output_levels", "full", "Expected `object`"),
    ("permissions.allow", [True], "Expected `str`"),
    ("permissions.try", "never", "Expected `bool`"),
    ("provider.fallback_model", "claude/", "PROVIDER/MODEL"),
    ("observability.endpoint", "collector:4318", "begins with http:// or https://"),
    ("observability.log_outputs", ["disk"], "(item 1 of the list); choose one of file, stderr"),
    ("terminal.theme", "pink", "unknown theme 'pink'"),
    ("serve.database", "mysql://x", "match"),
    ("retry.initial_delay", float("nan"), "Expected `float`"),
    ("provider.read_timeout", float("inf"), "Expected `float` <= 86400.0"),
    ("local.linger", float("-inf"), "Expected `float` >= 0.0"),
    ("sandbox.writable", [""], "write the path of a file"),
    ("sandbox.environment", ["A=b"], "write the name of an environment variable"),
    *((key, next(value for value in (-1, "x y", 1.5) if not fits(value, SETTINGS[key][0])), "") for key in SETTINGS),
]


@pytest.mark.parametrize(("key", "value", "said"), WRONG)
def test_a_wrong_value_names_file_line_and_key(key: str, value: Any, said: str, paths: Paths, project: Path) -> None:
    group, _, name = key.partition(".")
    written = tomli_w.dumps({name: value}).replace("\n    ", "").replace(",\n", "")
    before = "# mine\n\n[tools]\nmax_parallel = 3\n\n" if group != "tools" else "\n" * 5
    file = write(paths.user_config, f"{before}[{group}]\n{written}")
    with pytest.raises(ConfigError) as refused:
        load(paths, project)
    error = refused.value
    assert (error.file, error.line, error.key, error.exit_code) == (str(file), 7, key, 2)
    assert said in str(error)
    assert str(error).startswith(f"{file}, line 7: {key}: ")


MINE = "[providers.mine]\nbase_url = 'http://a'\n"


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("[providers.mine]\nbase_url = 'example.com'\n", 2, "providers.mine.base_url", "write "),
        ("[providers.mine]\nbase_url = 'ftp://example.com'\n", 2, "providers.mine.base_url", "write "),
        (f"{MINE}api_key_env = 'MY KEY'\n", 3, "providers.mine.api_key_env", "write "),
        (f"{MINE}needs_key = 'yes'\n", 3, "providers.mine.needs_key", "Expected `bool"),
        (f"{MINE}headers = {{ headers-a = 1 }}\n", 3, "providers.mine.headers.headers-a", "Expected `str`"),
        (f"{MINE}quirks = [1]\n", 3, "providers.mine.quirks", "Expected `object`"),
        (f"{MINE}url = 'x'\n", 3, "providers.mine.url", ""),
        ("[retry]\nmaxx = 1\n", 2, "retry.maxx", ""),
        ("[retries]\nmax = 1\n", 1, "retries", ""),
        ("model = 'a/b'\n", 1, "model", ""),
        ("retry.max = 1\nretry.maxx = 2\n", 2, "retry.maxx", ""),
        ("\n[ retry ]\n  'max' = -1\n", 3, "retry.max", ""),
        ("retry = { max = -1 }\n", 1, "retry.max", ""),
        ("retry = 3\n", 1, "retry", ""),
        ("[retry\nmax = 1\n", 1, "", ""),
        ("[retry]\nmax = 1\nmax = 2\n", 3, "", ""),
        ("a = = 1", 1, "", ""),
        ("\n\nx", 3, "", ""),
    ],
)
def test_a_mistake_is_found_however_it_is_written(
    text: str, line: int, key: str, said: str, paths: Paths, project: Path
) -> None:
    file = write(paths.user_config, text)
    with pytest.raises(ConfigError) as refused:
        load(paths, project)
    assert (refused.value.file, refused.value.key, refused.value.line) == (str(file), key, line)
    assert said in str(refused.value)


def test_a_file_that_cannot_be_read_or_makes_no_sense_is_refused_by_name(paths: Paths, project: Path) -> None:
    for text in ("{", "[]", "null", '"a"', '{"retry": {"max": -1}}', '{"retry": 1}'):
        with pytest.raises(ConfigError, match=r"extra\.json"):
            load(paths, project, extra=read_layer(write(project / "extra.json", text)))
    (project / "bytes.toml").write_bytes(b"a = '\xff'")
    for name in ("missing.toml", "bytes.toml", ""):
        with pytest.raises(ConfigError, match=f"{name}.*could not be read"):
            load(paths, project, extra=read_layer(project / name))


# What goes over what.


def test_each_source_goes_over_the_one_before(paths: Paths, project: Path) -> None:
    """user < project < local < extra file < environment < flags"""

    def rounds(**how: Any) -> int | None:
        return load(paths, project, how.pop("environment", None), trust=True, **how).settings.limits.max_turns

    assert rounds() is None
    folder = project / ".agentcli"
    files = paths.user_config, folder / "config.toml", folder / "config.local.toml", project / "extra.toml"
    for number, file in enumerate(files, 10):
        write(file, {"limits": {"max_turns": number}})
        how: dict[str, Any] = {"extra": read_layer(file)} if file.name == "extra.toml" else {}
        assert rounds(**how) == number
    how["environment"] = {"AGENTCLI_LIMITS_MAX_TURNS": "14"}
    assert rounds(**how) == 14
    assert rounds(**how, flags={"limits": {"max_turns": 15}}) == 15
    assert load(paths, project, trust=True, extra=read_layer(files[-1])).files == files


def test_a_source_that_is_silent_on_a_setting_leaves_it(paths: Paths, project: Path) -> None:
    write(paths.user_config, {"retry": {"max": 7, "initial_delay": 2.0}, "limits": {"max_turns": 9}})
    found = load(paths, project, {"AGENTCLI_RETRY_INITIAL_DELAY": "0.5"}, flags={"limits": {}})
    assert found.settings.retry == RetrySettings(7, 0.5)
    assert found.settings.limits.max_turns == 9


def test_rules_add_up_so_that_none_is_lost(paths: Paths, project: Path) -> None:
    write(paths.user_config, {"permissions": {"allow": ["bash(ls *)"], "deny": ["bash(rm *)"]}})
    write(project / ".agentcli" / "config.toml", {"permissions": {"deny": ["file_write"], "allow": []}})
    found = load(paths, project, trust=True, flags={"permissions": {"allow": ["Edit"], "deny": ["bash(mv *)"]}})
    assert found.settings.permissions.allow == ("bash(ls *)", "Edit")
    assert found.settings.permissions.deny == ("bash(rm *)", "file_write", "bash(mv *)")


def test_other_lists_are_replaced_and_what_comes_of_all_is_checked(paths: Paths, project: Path) -> None:
    write(paths.user_config, {"tools": {"only": ["bash"]}})
    assert load(paths, project, flags={"tools": {"only": ["think"]}}).settings.tools.only == ("think",)
    with pytest.raises(ConfigError, match=r"command line: limits\.max_turns"):
        load(paths, project, flags={"limits": {"max_turns": 0}})


def test_servers_and_model_rows_are_merged_table_by_table(paths: Paths, project: Path) -> None:
    write(paths.user_config, {"providers": {"a": {"base_url": "http://a", "headers": {"x": "1"}}}})
    extra = write(project / "e.toml", {"providers": {"a": {"headers": {"y": "2"}}, "b": {"base_url": "http://b"}}})
    servers = load(paths, project, extra=read_layer(extra)).settings.providers
    assert servers["a"] == ServerSettings(base_url="http://a", headers={"x": "1", "y": "2"})
    assert servers["b"].base_url == "http://b"


# The environment.


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return ",".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_is_reachable_from_the_environment(key: str, paths: Paths, project: Path) -> None:
    group, _, name = key.partition(".")
    variable = f"AGENTCLI_{group}_{name}".upper()
    found = load(paths, project, {variable: as_text(other(key))}).settings
    assert msgspec.to_builtins(getattr(found, group))[name] == msgspec.to_builtins(other(key))
    assert found != Settings()


def test_keys_and_themes_go_key_by_key_over_what_is_below(paths: Paths, project: Path, tmp_path: Path) -> None:
    write(paths.user_config, '[terminal.keys]\nstash = "f2"\nunfold = ["f3", "f4"]\n[terminal.themes.mine]\nblue = 1\n')
    extra = write(tmp_path / "extra.toml", '[terminal.keys]\nunfold = "f5"\n[terminal.themes.mine]\nred = "#ff0000"\n')
    terminal = load_config(project, {}, paths=paths, extra=read_layer(extra)).settings.terminal
    assert {k: v for k, v in terminal.keys.by_action().items() if k in ("stash", "unfold", "mode")} == {
        "stash": ("f2",), "unfold": ("f5",), "mode": ("s-tab",),
    }  # fmt: skip
    assert terminal.themes == {"mine": {"blue": 1, "red": "#ff0000"}}
    write(extra, '[terminal.keys]\n\nunfold = "f2"\n')
    with pytest.raises(ConfigError) as refused:
        load_config(project, {}, paths=paths, extra=read_layer(extra))
    assert (refused.value.key, refused.value.line) == ("terminal.keys.stash", 2)


WRONG_VARIABLES = {
    "AGENTCLI_RETRY_MAX": ("many", "-1"),
    "AGENTCLI_LIMITS_MAX_BUDGET_USD": ("$5",),
    "AGENTCLI_PERMISSIONS_MODE": ("yolo",),
    "AGENTCLI_MODEL": ("claude/",),
    "AGENTCLI_PROVIDER_MODEL": ("claude/",),
}


def test_a_wrong_variable_is_named_and_other_variables_are_not_settings(paths: Paths, project: Path) -> None:
    for variable, texts in WRONG_VARIABLES.items():
        for text in texts:
            with pytest.raises(ConfigError, match=f"environment: {variable}") as refused:
                load(paths, project, {variable: text})
            assert refused.value.key == variable
    environment = {"AGENTCLI_HOME": "/x", "AGENTCLI_NONSENSE": "1", "RETRY_MAX": "9"}
    found = load(paths, project, environment)
    assert (found.settings, found.environment) == (Settings(), environment)


def test_the_model_has_a_short_variable(paths: Paths, project: Path) -> None:
    assert load(paths, project, {"AGENTCLI_MODEL": "a/b"}).settings.provider.model == "a/b"
    both = {"AGENTCLI_MODEL": "a/b", "AGENTCLI_PROVIDER_MODEL": "c/d"}
    assert load(paths, project, both).settings.provider.model == "c/d"


# Projects.


@pytest.fixture
def shared(project: Path) -> Path:
    return write(project / ".agentcli" / "config.toml", {"limits": {"max_turns": 3}})


def test_an_untrusted_project_s_files_are_passed_over_and_that_is_reported(
    paths: Paths, project: Path, shared: Path
) -> None:
    for text in (shared.read_text(), "[[["):  # which is not even read
        shared.write_text(text)
        found = load(paths, project)
        assert (found.settings, found.files) == (Settings(), ())
        (notice,) = found.notices
        assert all(part in notice for part in (str(shared), "config trust", "--trust"))


def test_a_trusted_project_s_files_are_used_from_everywhere_inside(paths: Paths, project: Path, shared: Path) -> None:
    remember_trust(paths, project_digests(project))
    below = project / "deep" / "down"
    below.mkdir(parents=True)
    for place in (project, below):
        found = load(paths, place)
        assert (found.settings.limits.max_turns, found.notices) == (3, ())


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_project_whose_files_changed_is_untrusted_again(
    paths: Paths, project: Path, shared: Path, change: str
) -> None:
    local = write(project / ".agentcli" / "config.local.toml", {"limits": {"max_turns": 4}})
    if change == "add":
        local.unlink()
    with_stamps = {path: f"{digest} {'0' * 64}" for path, digest in project_digests(project).items()}
    remember_trust(paths, with_stamps)  # as earlier versions stored it
    assert is_trusted(paths, project)
    match change:
        case "edit":
            write(shared, {"limits": {"max_turns": 5}})
        case "add":
            write(local, {"limits": {"max_turns": 5}})
        case _:
            shared.unlink()
    assert not is_trusted(paths, project)
    assert load(paths, project).settings.limits.max_turns is None
    remember_trust(paths, project_digests(project))
    assert is_trusted(paths, project)


def test_a_project_s_slash_commands_count_only_while_they_are_as_they_were_trusted(paths: Paths, project: Path) -> None:
    folder = project / ".agentcli" / "commands"
    command = folder / "deep" / "do.md"
    command.parent.mkdir(parents=True)
    command.write_text("Do it.")
    users = paths.config / "commands"
    found = load(paths, project)
    assert found.command_folders == (users,)
    assert str(command) in found.notices[0]
    assert load(paths, project, trust=True).command_folders == (users, folder)
    remember_trust(paths, project_digests(project))
    found = load(paths, project)
    assert (found.command_folders, found.notices, found.files) == ((users, folder), (), ())
    command.write_text("Do something else.")
    assert load(paths, project).command_folders == (users,)


def test_rules_count_only_from_the_sources_that_are_named(paths: Paths, project: Path) -> None:
    names = {paths.user_config: "user", **{project / name: scope for scope, name in PROJECT_FILES.items()}}
    for file, rule in names.items():
        write(file, {"permissions": {"allow": [rule]}})
    for named, rules in ((None, ("user", "project", "local")), ({"project"}, ("project",)), ({"local"}, ("local",))):
        found = load(paths, project, trust=True, sources=named and frozenset(named))
        assert found.settings.permissions.allow == rules
        assert found.project.is_allowed is ("project" in rules)


def test_trust_is_for_one_project_and_kept_where_only_the_person_can_write(
    paths: Paths, project: Path, shared: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    write(other / ".agentcli" / "config.toml", shared.read_text())
    for now, trusted in ((project, [True, False]), (other, [True, True])):
        remember_trust(paths, project_digests(now))
        assert [is_trusted(paths, one) for one in (project, other)] == trusted
    assert stat.S_IMODE(paths.state.stat().st_mode) == 0o700


def test_a_trust_file_that_makes_no_sense_trusts_nothing(paths: Paths, project: Path, shared: Path) -> None:
    remember_trust(paths, project_digests(project))
    for nonsense in (b"", b"[1]", b'{"a": 1}', b"\xff"):
        (paths.state / "trust.json").write_bytes(nonsense)
        assert not is_trusted(paths, project)
        with pytest.raises(ConfigError, match=r"trust\.json"):
            remember_trust(paths, project_digests(project))


def test_trust_that_cannot_be_kept_is_a_clear_error(paths: Paths, project: Path, shared: Path) -> None:
    paths.state.parent.mkdir(parents=True)
    paths.state.write_text("a file in the way")
    with pytest.raises(ConfigError, match=r"trust\.json: could not be written"):
        remember_trust(paths, project_digests(project))


NOT_OF_A_PROJECT = {
    "[provider]": {"provider": {"model": "evil/model"}},
    "[providers]": {"providers": {"anthropic": {"base_url": "http://evil"}}},
    "[observability]": {"observability": {"log_level": "debug"}},
    "tokens.encoders": {"tokens": {"encoders": "evil.toml", "max_output": 7}},
}


def test_settings_that_are_no_longer_used_are_named(paths: Paths, project: Path) -> None:
    write(paths.user_config, {"compaction": {"summary_share": 0.2}, "budgets": {"fallback_model": "ollama/m"}})
    notices = load(paths, project).notices
    names = ("compaction.summary_share", "budgets.fallback_model")
    assert [notice.partition(" is no longer used")[0] for notice in notices] == [*names]


@pytest.mark.parametrize("named", NOT_OF_A_PROJECT)
@pytest.mark.parametrize("file", ["config.toml", "config.local.toml"])
def test_where_prompts_go_who_counts_and_what_is_watched_is_never_a_project_s_choice(
    named: str, file: str, paths: Paths, project: Path
) -> None:
    write(project / ".agentcli" / file, {**NOT_OF_A_PROJECT[named], "limits": {"max_turns": 3}})
    found = load(paths, project, trust=True)
    tokens = TokenSettings(max_output=7) if named == "tokens.encoders" else TokenSettings()
    assert found.settings == Settings(limits=LimitSettings(max_turns=3), tokens=tokens)
    (notice,) = found.notices
    assert f"{named} cannot be set by a project" in notice
    assert str(paths.user_config) in notice


def test_a_project_reaches_up_to_the_folder_that_holds_git(tmp_path: Path, project: Path) -> None:
    below = project / "a" / "b"
    below.mkdir(parents=True)
    assert project_root(below) == project
    alone = tmp_path / "alone"
    alone.mkdir()
    assert project_root(alone) == alone
    worktree = tmp_path / "worktree"
    write(worktree / ".git", "gitdir: elsewhere")
    assert project_root(worktree) == worktree


# Folders.


def test_one_variable_moves_everything_below_one_folder(tmp_path: Path) -> None:
    found = find_paths(str(tmp_path))
    assert found.user_config == tmp_path / "config.toml"
    assert found.sessions == tmp_path / "state" / "sessions.db"
    assert found.models == tmp_path / "cache" / "models"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_without_it_everything_lies_in_the_platform_s_folders(home: Path) -> None:
    found = find_paths(None)
    assert {found.config.name, found.state.name, found.cache.name} == {"agentcli"}
    assert all(folder.is_relative_to(home) for folder in (found.config, found.state, found.cache))
    assert find_paths("").config == found.config
    assert find_paths("~/here").config == home / "here"


def test_json_and_toml_say_the_same(paths: Paths, project: Path) -> None:
    value = {"limits": {"max_turns": 3}, "permissions": {"allow": ["bash(ls *)"]}}
    toml = write(project / "a.toml", value)
    as_json = write(project / "a.json", json.dumps(value))
    assert (
        load(paths, project, extra=read_layer(toml)).settings
        == load(paths, project, extra=read_layer(as_json)).settings
    )


def test_of_a_projects_commands_only_what_lies_in_it_counts(tmp_path: Path) -> None:
    own = tmp_path / "ws/.agentcli"
    (own / "commands/sub").mkdir(parents=True)
    for name in ("a.md", "sub/b.md", "c.txt"):
        (own / "commands" / name).write_text("x")
    (own / "commands/elsewhere").symlink_to("/")
    (own / "commands/none.md").symlink_to("nowhere")
    assert [str(path.relative_to(own)) for path in project_files(tmp_path / "ws")] == [
        "commands/a.md",
        "commands/sub/b.md",
    ]
    (own / "commands").rename(tmp_path / "commands")
    (own / "commands").symlink_to(tmp_path / "commands")
    assert project_files(tmp_path / "ws") == []


def test_folders_without_end_do_not_keep_it_from_starting(tmp_path: Path) -> None:
    folder = tmp_path / ".agentcli/commands"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("x")
    here = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(1_500):
            Path("d").mkdir()
            os.chdir("d")
        assert [file.name for file in project_files(tmp_path)] == ["a.md"]
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-rf", tmp_path / ".agentcli"], check=True)


def test_a_working_directory_that_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    here = Path.cwd()
    try:
        os.chdir(gone)
        gone.rmdir()
        with pytest.raises(UsageError, match="`cd` to another one"):
            current_folder()
    finally:
        os.chdir(here)
