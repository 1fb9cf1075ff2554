"""Chooses the best backend that really runs a command on this machine, and defines Docker and Seatbelt.

Docker or podman run each command in its own container, without network, privileges or capabilities.

Seatbelt confines commands on macOS, through `sandbox-exec` and a profile in its own language, in which the last rule
that matches wins. Names are compared regardless of case, because the disk treats `.GIT` and `.git` as the same name.
Rules use real paths: `/tmp`, `/var` and `/etc` are links into `/private`. There is no private network, no process
namespace and no private /tmp.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path

from agentcli.infra.sandbox.backends.launcher import landlock_version
from agentcli.infra.sandbox.backends.linux import PROGRAMS, Bubblewrap, Landlock, render_mounts
from agentcli.infra.sandbox.confinement import (
    MAX_PLANS,
    Bounds,
    Confinement,
    Launch,
    Protection,
    Unconfined,
    is_inside,
    is_real,
    probe,
    resolve_existing,
)
from agentcli.infra.sandbox.environment import PRIVATE_TMP, cache_environment
from agentcli.infra.sandbox.mount_points import MountPoints
from agentcli.infra.sandbox.protection.planning import plan_protection

_INSTALLERS = ("apt-get install", "dnf install", "pacman -S", "zypper install", "apk add")

KINDS = {"linux": ("bubblewrap", "landlock"), "darwin": ("seatbelt",)}

NO_HOSTS = "Commands reach no host, granted or not."  # without the network proxy

_ADVICE = {  # a part of the system's message: its explanation for the person
    "uid map": "user namespaces are forbidden here; where AppArmor does it, its profile"
    " bwrap-userns-restrict (package apparmor-profiles) allows them to bubblewrap",
    "No permissions to creat": "user namespaces are forbidden here (in a container: --security-opt seccomp=unconfined,"
    " or --privileged)",
    "nknown option": "it is too old: version 0.8 is needed, or an older one with its security updates",
    "Creating new namespace failed": "namespaces are forbidden here",
    "Operation not permitted": "namespaces or mounts are forbidden here",
}


@cache
def choose_confinement(
    *, tmp: Path, kinds: tuple[str, ...] = KINDS.get(sys.platform, ()), programs: tuple[Path, ...] = PROGRAMS
) -> Confinement:
    """Return the first of `kinds` that runs `true` here, else `Unconfined`; `problem` says why better ones failed."""
    reasons: list[str] = []
    for kind in kinds:
        try:
            confinement = _probe(kind, tmp, programs)
            confinement.problem = " ".join(reasons)
            return confinement
        except (OSError, NotImplementedError, ValueError, subprocess.SubprocessError) as error:
            reasons.append(f"{kind}: {error}.")
    return Unconfined(" ".join(reasons) or "There is nothing to confine commands with on this system.")


def _probe(kind: str, tmp: Path, programs: Sequence[Path]) -> Confinement:
    """Return the backend of a kind if it really runs `true` here. Otherwise raises an error that names the reason."""
    if kind == "landlock":
        landlock_version()  # fails if the kernel has none
        return Landlock(tmp=tmp)
    candidates: list[Confinement] = [Seatbelt(tmp)]  # for the kind "seatbelt"
    if kind == "bubblewrap":
        program = next((program for program in programs if program.is_file()), None)
        if program is None:
            raise OSError(f"not installed (`{how_to_install()}`)")
        # Only root can make the other namespaces without a user namespace, which some systems forbid.
        namespaces = ("all but user", "all") if os.getuid() == 0 else ("all",)
        candidates = [Bubblewrap(program, each, hidden=tmp / "hidden") for each in namespaces]
    message = ""
    for confinement in candidates:
        for _ in range(MAX_PLANS):  # because a path in the plan may disappear before it is mounted
            message = _probe_error(confinement, tmp)
            if not message:
                return confinement
            if _explain(message):  # it would fail in the same way again
                break
    raise OSError(f"{_explain(message) or 'it does not work here'} ({message})")


def how_to_install() -> str:
    how = next((how for how in _INSTALLERS if shutil.which(how.split()[0])), _INSTALLERS[0])
    return f"{how} bubblewrap" if os.getuid() == 0 else f"sudo {how} bubblewrap"


def _explain(message: str) -> str:
    """Explain an error message that every further try would cause too; return "" for any other message."""
    return next((advice for part, advice in _ADVICE.items() if part in message), "")


def _probe_error(confinement: Confinement, folder: Path) -> str:
    """Run `true` in a sandbox; return the error message, or ""."""
    root = folder.resolve()
    bounds = Bounds(profile="workspace-write", roots=(root,), home=Path("/"))
    try:
        with confinement.launch(["true"], cwd=root, bounds=bounds) as planned, render_mounts(planned) as launch:
            _, problem = probe(launch.argv, launch.pass_fds)
            return problem
    except FileNotFoundError as error:
        if Path(error.filename or "/").is_relative_to(root):  # a folder disappeared after the planning
            return str(error)  # so the caller tries again
        raise


class Docker(Confinement):
    """The image must contain the programs that commands need. Descriptors are not passed."""

    name = "docker"

    def __init__(self, image: str, *, program: str = "docker") -> None:
        self._image = image
        self._program = program
        try:
            _, message = probe([program, "version"], ())
        except (OSError, subprocess.SubprocessError) as error:
            message = getattr(error, "strerror", None) or str(error)
        if message:
            advice = "Start its daemon, or choose another sandbox (sandbox.kind in the settings)."
            self.problem = f"{program} does not answer: {message.rstrip('.')}. {advice}"

    @contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        name = f"agentcli-{os.urandom(8).hex()}"
        protection = plan_protection(bounds, str(cwd))
        with closing(MountPoints()) as mount_points:
            caches = cache_environment(str(bounds.resources.cache or f"{PRIVATE_TMP}/.cache"))
            options = [
                *(f"--name={name}", "--rm", "--init", "--interactive", "--network=none", "--read-only"),
                *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--ipc=private"),
                *("--memory=4g", "--pids-limit=512"),
                *(f"--user={os.getuid()}:{os.getgid()}", f"--tmpfs={PRIVATE_TMP}:rw,exec,nosuid,nodev,mode=1777"),
                *(f"--env={key}={value}" for key, value in {"HOME": PRIVATE_TMP, **caches}.items()),
                *(f"--mount={mount}" for mount in _docker_mounts(bounds, protection, mount_points)),
                f"--workdir={cwd}",
            ]
            try:
                yield Launch([self._program, "run", *options, self._image, *argv])
            finally:
                # If `docker run` was killed, its container still runs.
                remove = [self._program, "rm", "--force", name]
                subprocess.run(remove, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30.0)

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return (*plan_protection(bounds, "").problems, NO_HOSTS)


def _docker_mounts(bounds: Bounds, protection: Protection, mount_points: MountPoints) -> list[str]:
    """Return a container's mounts as values of `--mount`. Docker sorts them, and rejects a path mounted twice."""
    may_write = bounds.profile != "read-only"
    folders = [str(root) for root in bounds.roots]
    # A command may have replaced a granted path with a link, which may lead anywhere.
    granted = [path for path in map(str, bounds.writable) if is_real(path)] if may_write else []
    created = [  # protected names that did not exist, so mount points were created for them
        *filter(mount_points.ensure, protection.missing_folders),
        *(path for path, content in protection.missing_files.items() if mount_points.ensure(path, content)),
    ]
    always_writable = [  # the cache, also of read-only commands, and folders that are mounted to prevent renaming
        *([] if bounds.resources.cache is None else [str(bounds.resources.cache)]),
        *(path for path in protection.writable if path not in (*folders, *granted)),
    ]
    mounts = [
        *(_docker_bind(path, is_writable=may_write) for path in dict.fromkeys([*folders, *granted])),
        *(_docker_bind(path, is_writable=True) for path in always_writable),
        *(_docker_bind(path) for path in (*protection.read_only, *created) if path not in granted),  # grants win
    ]
    shown = {each.path for each in resolve_existing(bounds.readable_again)}
    for path, is_folder in resolve_existing(bounds.masked):  # those in other folders are not in the container at all
        if path not in shown and any(is_inside(path, folder) for folder in (*folders, *granted)):
            empty_folder = f"type=tmpfs,destination={path},tmpfs-mode=0000,tmpfs-size=4096"
            mounts.append(empty_folder if is_folder else _docker_bind(path, os.devnull))
    return mounts


def _docker_bind(path: str, source: str = "", *, is_writable: bool = False) -> str:
    if "," in path or '"' in path:
        raise OSError(f"docker cannot mount {path!r}: its name has a comma or a quote in it")
    return f"type=bind,source={source or path},destination={path}" + ("" if is_writable else ",readonly")


_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/dtracehelper")
# Parts of every git folder that name programs for git to run, or lead to a folder that does.
_IN_GIT_FOLDER = ("hooks", "config", "config.worktree", "info", "commondir", "gitdir")


class Seatbelt(Confinement):
    """`tmp` is the TMPDIR of all commands."""

    name = "seatbelt"

    def __init__(self, tmp: Path) -> None:
        self._tmp = Path(os.path.realpath(tmp))  # the state folder may be behind a link

    @contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        profile = seatbelt_profile(bounds, tmp=self._tmp)
        yield Launch(["/usr/bin/sandbox-exec", "-p", profile, *argv], environment={"TMPDIR": str(self._tmp)})

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return (
            "Processes that a command leaves behind are not ended with it.",
            "Commands share one temporary folder and can see your other processes.",
            NO_HOSTS,
        )


def seatbelt_profile(bounds: Bounds, *, tmp: Path) -> str:
    """Return the rules that enforce the bounds of a command; the last rule that matches wins."""
    may_write = bounds.profile == "workspace-write"
    granted = (*bounds.roots, *bounds.writable) if may_write else ()
    caches, masked = [*filter(None, (bounds.resources.cache,))], _masked_paths(bounds)
    rules = [
        "(version 1)",
        "(allow default)",
        "(deny network*)",
        "(deny appleevent-send)",  # this and the next could make another program act
        "(deny lsopen)",
        "(deny signal)",
        "(allow signal (target same-sandbox))",
        "(deny process-info* (target others))",
        "(deny file-write*)",
        _rule("allow file-write*", [f"(literal {_quote(device)})" for device in _DEVICES]),
        _rule("allow file-write*", _subpaths([*granted, *caches])),
        *(_protection_rules(bounds) if may_write else ()),
        *_read_rules(masked, bounds.readable_again),
        _rule("deny file-write*", _subpaths(masked)),  # also inside what was made writable above
        _rule("allow file-read* file-write*", _subpaths([tmp])),  # after the masked folders, because it is in one
        # A command must not replace these folders with links: the next command would be denied their targets.
        _rule(
            "deny file-write-unlink",
            [f"(literal {_quote(path)})" for each in (tmp, *caches) for path in _spellings(each)],
        ),
    ]
    return "\n".join(rule for rule in rules if rule) + "\n"


def _read_rules(masked: Sequence[Path], readable_again: Sequence[Path]) -> list[str]:
    """Return rules on reading: of a masked path and an exception the longer wins; if they are equal, the exception."""
    verbs = [*((path, "deny") for path in masked), *((path, "allow") for path in readable_again)]
    verbs.sort(key=lambda each: (len(each[0].parts), each[1] == "allow"))
    groups = groupby(verbs, key=lambda each: each[1])
    return [_rule(f"{verb} file-read*", _subpaths([path for path, _ in group])) for verb, group in groups]


def _masked_paths(bounds: Bounds) -> list[Path]:
    """Return masked paths and the targets of links among them, because the system compares real paths.

    A link is not followed if that would deny what commands need: if it leads to a device, as `~/.bash_history` may lead
    to `/dev/null`, or to a root, the home or a folder around these. A repository may bring its own links, so a link
    in a root is not followed to a folder.
    """
    needed, followed = [str(path) for path in (*bounds.roots, bounds.home)], []
    for path in bounds.masked:
        real = os.path.realpath(path)
        in_root = any(path.is_relative_to(root) for root in bounds.roots)
        is_needed = real in _DEVICES or any(is_inside(each, real) for each in needed)
        if not is_needed and not (in_root and os.path.isdir(real)):  # noqa: PTH112  # `real` is text
            followed.append(Path(real))
    return [*bounds.masked, *followed]


def _protection_rules(bounds: Bounds) -> list[str]:
    """Return the rules that deny writing protected names and parts of repositories, and moving folders around them."""
    rules: list[str] = []
    git = _without_case(".git")
    in_git = "|".join(map(_without_case, _IN_GIT_FOLDER))
    for root in (spelling for folder in bounds.roots for spelling in _spellings(folder)):
        root_pattern = _without_case(root.rstrip("/"))
        # `join` leaves absolute names unchanged; those outside this root are filtered out below.
        protected = [os.path.join(root, name) for name in bounds.protected]  # noqa: PTH118
        read_only = [
            *(_regex(f"^{_without_case(path)}(/|$)") for path in protected if is_inside(path, root) and path != root),
            # The parts of every repository, also of submodules and linked worktrees.
            _regex(f"^{root_pattern}/(.*/)?{git}/((modules|worktrees)/.*/)?({in_git})(/|$)"),
        ]
        # Folders around protected names must not be renamed: the names would get other paths, which no rule matches.
        outer = [root, *(str(parent) for parent in Path(root).parents if str(parent) != "/")]
        immovable = [*(f"(literal {_quote(path)})" for path in outer), _regex(f"^{root_pattern}/(.*/)?{git}$")]
        rules += [_rule("deny file-write*", read_only), _rule("deny file-write-unlink", immovable)]
    return [*rules, _rule("allow file-write*", _subpaths(bounds.writable))]  # last, so it wins over the rules above


def _subpaths(folders: Sequence[Path]) -> list[str]:
    return [f"(subpath {_quote(path)})" for folder in folders for path in _spellings(folder)]


def _rule(action: str, filters: Sequence[str]) -> str:
    """Return one rule; empty if there is no filter, because a rule without one would match everything."""
    return f"({action}\n  " + "\n  ".join(dict.fromkeys(filters)) + ")" if filters else ""


def _spellings(path: Path) -> list[str]:
    """Return the names that a path has because of macOS's links into /private, such as `/tmp/a` and `/private/tmp/a`.

    No other link is followed: a command may have replaced a granted path with a link that leads anywhere.
    """
    text = os.path.normpath(path)
    for name in ("/tmp", "/var", "/etc"):  # noqa: S108  # names of links
        if text == name or text.startswith(name + "/"):
            return [text, "/private" + text]
    return [text, text.removeprefix("/private")] if text.startswith("/private/") else [text]


def _without_case(text: str) -> str:
    """Return a pattern that matches a text in upper and lower case; the language has no flag for that."""
    return "".join(f"[{c.lower()}{c.upper()}]" if c.lower() != c.upper() else re.escape(c) for c in text)


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _regex(pattern: str) -> str:
    return '(regex #"' + pattern.replace('"', '\\"') + '")'
