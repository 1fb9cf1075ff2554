"""What a path argument leads to, and whether that is more than an ordinary file of the workspace."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any, Literal

from msgspec import Struct

from agentcli.agent.permissions.rules import PathGround, Rule, is_literal, matches_path
from agentcli.errors import ToolError
from agentcli.safety.paths.judge import judge_path
from agentcli.safety.paths.protected import is_protected, is_reviewed
from agentcli.safety.paths.secret import is_secret
from agentcli.tools.path_names import parse_name
from agentcli.tools.sandbox import Access
from agentcli.tools.tool import Tool, Workspace

# plain: a file of the workspace. outside: not in it. secret: may hold keys. protected: what programs run or obey.
# linked: a file with several names, one of which may be outside. odd: a name that may mean something else elsewhere.
Kind = Literal["plain", "outside", "secret", "protected", "linked", "odd"]

WHY = {
    "outside": "is outside the workspace",
    "secret": "may hold secrets",
    "protected": "is an auto-executed file (git hook, editor task, shell profile …)",
    "linked": "has other names, perhaps outside the workspace",
    "odd": "is a name that may mean something else",
}


class Target(Struct, frozen=True):
    """A path as it was given, and where it really leads. What `is_outside` may be of a kind that weighs more."""

    given: str
    real: Path
    access: Access
    kind: Kind
    is_outside: bool = False

    @property
    def why(self) -> str:
        return f"{self.given} {WHY[self.kind]}" if self.kind != "plain" else ""


def ground_of(workspace: Workspace) -> PathGround:
    return PathGround(workspace.real_cwd, workspace.sandbox.roots[0], workspace.home)


def targets_of(tool: Tool, arguments: Any, workspace: Workspace) -> tuple[Target, ...]:
    """The files a call of a file tool is about. Raises `ToolError` for a path that leads nowhere: a loop of links."""
    access: Access = "write" if tool.effect == "edit" else "read"
    names = tool.file_arguments or ("path",)
    given = (getattr(arguments, name, None) for name in names)
    return tuple(look_at(path, access, workspace) for path in given if isinstance(path, str))


def look_at(given: str, access: Access, workspace: Workspace) -> Target:
    """Raises `ToolError` (invalid_parameters)."""
    real = workspace.real_path(given)
    return Target(given, real, access, _kind(given, real, access, workspace), _is_outside(real, workspace))


def look_at_real(real: Path, access: Access, workspace: Workspace) -> Target:
    """As `look_at` for a path whose links are followed already."""
    kind = _kind(str(real), real, access, workspace)
    return Target(workspace.shown(real), real, access, kind, _is_outside(real, workspace))


def _is_outside(real: Path, workspace: Workspace) -> bool:
    return not any(real.is_relative_to(root) for root in workspace.sandbox.roots)


def is_kept_from_edits(target: Target, workspace: Workspace) -> bool:
    """Whether the sandbox keeps a file from edits that nobody is asked about. What a project reviews is not kept."""
    if target.kind == "protected" and not target.is_outside:
        return not is_reviewed(_below_root(target, workspace)) or workspace.sandbox.is_write_protected(target.real)
    return target.access == "write" and target.is_outside


def has_secrets(target: Target, workspace: Workspace) -> bool:
    """Whether there may be a secret in a file: none is in one that is about to be made, whatever its name says."""
    if target.kind != "secret" or target.access == "read" or target.is_outside:
        return target.kind == "secret"
    by_place = is_secret(target.real.parent, workspace.home) or is_protected(_below_root(target, workspace))
    only_by_name = is_secret(PurePath(target.real.name), None) and not by_place
    return not only_by_name or _is_there(target.real, workspace)


def _is_there(real: Path, workspace: Workspace) -> bool:
    """Also where the system does not tell."""
    try:
        return workspace.sandbox.status(real) is not None
    except OSError:
        return True


def _below_root(target: Target, workspace: Workspace) -> PurePath:
    root = next(root for root in workspace.sandbox.roots if target.real.is_relative_to(root))
    return target.real.relative_to(root)


def _kind(given: str, real: Path, access: Access, workspace: Workspace) -> Kind:
    """By where the path leads first; by its name where that says more."""
    roots, home, cwd = workspace.sandbox.roots, workspace.home, workspace.cwd
    if not workspace.sandbox.knows(real, access):
        by_place = judge_path(str(real), access=access, cwd=cwd, roots=roots, home=home)
        if by_place != "plain":
            return by_place
    by_name = judge_path(parse_name(given), access=access, cwd=cwd, roots=roots, home=home)
    if by_name in ("odd", "secret", "protected"):
        return by_name
    if access == "write" and workspace.sandbox.is_write_protected(real):
        return "protected"
    if access == "write" and _has_other_names(real, workspace):
        return "linked"
    return "plain"


def _has_other_names(real: Path, workspace: Workspace) -> bool:
    try:
        status = workspace.sandbox.status(real)
    except OSError:
        return False
    return status is not None and status.kind == "file" and status.links > 1


def is_covered(rule: Rule, target: Target, ground: PathGround) -> bool:
    """Whether a grant speaks of a target. What is more than a plain file has to be meant by the rule itself."""
    if not rule.pattern:
        return target.kind == "plain"
    if not matches_path(rule.pattern, target.real, ground):
        return False
    name = PurePath(rule.pattern.lstrip("/"))
    match target.kind:
        case "plain" | "outside":
            return True
        case "secret":
            return is_literal(rule.pattern) or is_secret(PurePath(str(name).replace("*", ".x")), ground.home)
        case "protected":
            return is_literal(rule.pattern) or is_protected(PurePath(str(name).replace("*", ".x")))
        case _:
            return is_literal(rule.pattern)


def is_refused(pattern: str, target: Target, workspace: Workspace) -> bool:
    """Whether a refusal speaks of a target: by where it leads, or by how it is written."""
    ground = ground_of(workspace)
    names = [target.real]
    try:
        names.append(workspace.lexical_path(target.given))
    except ToolError:
        pass
    patterns = (pattern, f"**/{pattern}", f"/{pattern}")  # generous: `/etc/x` may be meant as it is written
    return any(matches_path(one, name, ground) for one in patterns for name in names)
