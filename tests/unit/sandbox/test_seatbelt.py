"""The profile for macOS, as text: what its rules say about a path, read as the system reads them (the last counts)."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from agentcli.infra.sandbox.backends.choosing import Seatbelt, seatbelt_profile
from agentcli.infra.sandbox.confinement import Bounds, CommandResources
from tests.rows import each_row

HOME, WS = Path("/Users/ada"), Path("/Users/ada/work")
BOUNDS = Bounds(
    profile="workspace-write",
    roots=(WS,),
    home=HOME,
    masked=(HOME / ".ssh", WS / ".env"),
    readable_again=(HOME / ".ssh/known_hosts",),
    writable=(HOME / "granted",),
    protected=(".agentcli", ".mcp.json"),
)
TMP = Path("/var/folders/x/T")

_RULE = re.compile(r"^\((allow|deny) ([\w* -]+)((?:\n  .*)*?)\)$", re.MULTILINE)
_FILTER = re.compile(r'\((subpath|literal|regex) #?"((?:[^"\\]|\\.)*)"\)')


def is_allowed(operation: str, path: str, bounds: Bounds = BOUNDS) -> bool:
    allowed = True
    for verb, name, filters in _RULE.findall(seatbelt_profile(bounds, tmp=TMP)):
        if any(fnmatch(operation, pattern) for pattern in name.split()):
            matches = not filters or any(
                path == value
                or (kind == "subpath" and path.startswith(value + "/"))
                or (kind == "regex" and re.search(value, path))
                for kind, value in _FILTER.findall(filters)
            )
            allowed = verb == "allow" if matches else allowed
    return allowed


def test_a_link_to_a_masked_folder_is_followed_and_one_in_place_of_a_granted_folder_or_the_cache_is_not(
    tmp_path: Path,
) -> None:
    for name in (".ssh", "granted", "cache"):
        (tmp_path / f"real{name}").mkdir()
        (tmp_path / name).symlink_to(tmp_path / f"real{name}")
    masked, granted = (tmp_path / ".ssh",), (tmp_path / "granted",)
    cache = CommandResources(cache=tmp_path / "cache")
    bounds = Bounds(profile="workspace-write", roots=(WS,), home=HOME, masked=masked, writable=granted, resources=cache)
    assert not is_allowed("file-read-data", f"{tmp_path}/real.ssh/id_rsa", bounds)
    for name in ("granted", "cache"):
        assert is_allowed("file-write-data", f"{tmp_path}/{name}/x", bounds)
        assert not is_allowed("file-write-data", f"{tmp_path}/real{name}/x", bounds)
    assert not is_allowed("file-write-unlink", f"{tmp_path}/cache", bounds)
    assert is_allowed("file-write-unlink", f"{tmp_path}/cache/x", bounds)


def test_a_secret_below_a_granted_folder_stays_masked() -> None:
    masked = (HOME / ".config/gh", HOME / ".config/gh/hosts.yml")
    bounds = Bounds(profile="read-only", roots=(WS,), home=HOME, masked=masked, readable_again=(HOME / ".config/gh",))
    assert is_allowed("file-read-data", f"{HOME}/.config/gh/config.yml", bounds)
    assert not is_allowed("file-read-data", f"{HOME}/.config/gh/hosts.yml", bounds)


def test_masked_links_to_what_every_command_needs_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "history").symlink_to("/dev/null")
    (tmp_path / "above").symlink_to("..")
    (work := tmp_path / "work").mkdir()
    (work / ".env").symlink_to("/usr")
    masked = (tmp_path / "history", tmp_path / "above", work / ".env")
    bounds = Bounds(profile="workspace-write", roots=(work,), home=HOME, masked=masked)
    assert is_allowed("file-write-data", "/dev/null", bounds)
    assert is_allowed("file-read-data", f"{work}/a", bounds)
    assert is_allowed("file-read-data", "/usr/bin/env", bounds)


def test_the_temporary_folder_is_usable_although_it_is_in_the_masked_state() -> None:
    bounds = Bounds(profile="workspace-write", roots=(WS,), home=HOME, masked=(TMP.parent,))
    for operation in ("file-read-data", "file-write-data"):
        assert is_allowed(operation, f"{TMP}/x", bounds)
        assert not is_allowed(operation, f"{TMP.parent}/x", bounds)
    assert not is_allowed("file-write-unlink", str(TMP), bounds)


@pytest.mark.parametrize("path", [
    "/Users/ada/work/a", "/Users/ada/work/.git/index", "/Users/ada/work/.git/objects/ab/cd", "/Users/ada/granted/x",
    "/private/var/folders/x/T/y", "/dev/null", "/Users/ada/work/.mcp.json5", "/Users/ada/work/sub/.agentcli",
])  # fmt: skip
def test_can_be_written(path: str) -> None:
    assert is_allowed("file-write-data", path)


@each_row("path", [
    "/Users/ada/.bashrc", "/Users/ada/work-evil/a", "/etc/hosts", "/Users/ada/work/.agentcli",
    "/Users/ada/work/.AgentCLI/x", "/Users/ada/work/.mcp.json", "/Users/ada/work/.git/hooks/pre-commit",
    "/Users/ada/work/.GIT/Hooks/x", "/Users/ada/work/.git/worktrees/x/commondir",
    "/Users/ada/work/.git/config", "/Users/ada/work/.git/commondir", "/Users/ada/work/.git/info/attributes",
    "/Users/ada/work/.git/modules/a/b/config", "/Users/ada/work/vendor/lib/.git/hooks/x", "/Users/ada/work/.env",
    "/Users/ada/.ssh/known_hosts",
])  # fmt: skip
def test_cannot_be_written(path: str) -> None:
    assert not is_allowed("file-write-data", path)


@pytest.mark.parametrize(
    "path", ["/Users/ada/work/.git", "/Users/ada/work/.Git", "/Users/ada/work", "/Users/ada", "/Users"]
)
def test_folders_above_protected_names_cannot_be_renamed(path: str) -> None:
    assert not is_allowed("file-write-unlink", path)


@pytest.mark.parametrize(("path", "expected"), [
    ("/Users/ada/.ssh/id", False), ("/Users/ada/work/.env", False), ("/Users/ada/.ssh/known_hosts", True),
    ("/etc/hosts", True),
])  # fmt: skip
def test_secrets_cannot_be_read(path: str, expected: bool) -> None:
    assert is_allowed("file-read-data", path) is expected


def test_there_is_no_network() -> None:
    assert not is_allowed("network-outbound", "example.org")


def test_read_only_writes_temporary_files_alone() -> None:
    bounds = Bounds(profile="read-only", roots=(WS,), home=HOME, writable=(HOME / "granted",))
    assert not is_allowed("file-write-data", "/Users/ada/work/a", bounds)
    assert not is_allowed("file-write-data", "/Users/ada/granted/a", bounds)
    assert is_allowed("file-write-data", "/private/var/folders/x/T/y", bounds)


def test_a_path_in_a_root_is_protected_like_a_name() -> None:
    protected = ("/Users/ada/work/scripts/guard.sh", "/Users/ada/elsewhere/x")
    bounds = Bounds(profile="workspace-write", roots=(WS,), home=HOME, protected=protected)
    assert not is_allowed("file-write-data", "/Users/ada/work/scripts/guard.sh", bounds)
    assert is_allowed("file-write-data", "/Users/ada/work/scripts/other.sh", bounds)


def test_quotes_in_names_stay_in_the_name() -> None:
    odd = Path('/Users/ada/a"b\\c(d)')
    text = seatbelt_profile(Bounds(profile="workspace-write", roots=(odd,), home=HOME), tmp=TMP)
    assert '(subpath "/Users/ada/a\\"b\\\\c(d)")' in text
    assert text.count("(") - text.count("\\(") >= text.count(")") - text.count("\\)")


def test_a_command_is_started_through_the_system_s_program() -> None:
    with Seatbelt(TMP).launch(["ls", "-l"], cwd=WS, bounds=BOUNDS) as launch:
        assert launch.argv == ["/usr/bin/sandbox-exec", "-p", seatbelt_profile(BOUNDS, tmp=TMP), "ls", "-l"]
