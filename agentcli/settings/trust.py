"""Finds the files of a project that need trust, and stores which ones the person trusted.

These files change settings, or agentcli or the model acts on their contents: settings, hooks, servers, commands,
skills, agents, and output styles.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from agentcli.errors import ConfigError
from agentcli.settings.files import Paths, folder_text, is_file, markdown_files, project_root, replace_private_file

PROJECT_FILES = {"project": ".agentcli/config.toml", "local": ".agentcli/config.local.toml"}  # settings, by scope
HOOKS_FILE = ".agentcli/hooks.json"
MCP_FILE = ".mcp.json"
CLAUDE_SETTINGS = (".claude/settings.json", ".claude/settings.local.json")  # used once they are imported
COMMAND_FOLDERS = (".claude/commands", ".agentcli/commands")  # the last one wins
SKILL_FOLDERS = (".agentcli/skills", ".agents/skills", ".claude/skills")  # the first one wins
AGENT_FOLDERS = (".agentcli/agents", ".claude/agents")
STYLE_FOLDERS = (".agentcli/output-styles", ".claude/output-styles")
_MAX_ENTRIES = 20_000  # in a folder of skills or a plugin; a larger one cannot be trusted
SKILL_FILE = "SKILL.md"


def project_files(cwd: Path) -> list[Path]:
    """Return the files of a project that are used only if it is trusted; for a skill its SKILL.md."""
    return [file for folder in project_folders(cwd) for file in _files_to_trust(folder, project_root(cwd))]


def project_command_folders(cwd: Path) -> list[Path]:
    """Return the project's folders of slash commands; the last one wins. A linked folder is not the project's."""
    root = project_root(cwd)
    real_root = os.path.realpath(root)
    folders = _existing_folders(root, COMMAND_FOLDERS, root)
    return [folder for folder in folders if os.path.realpath(folder) == f"{real_root}/{folder.relative_to(root)}"]


def project_folders(cwd: Path) -> list[Path]:
    """Return the project's root and the folders from it to the working directory, outermost first."""
    root = project_root(cwd)
    return [folder for folder in (*reversed(cwd.parents), cwd) if folder.is_relative_to(root)]


def definition_folders(cwd: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the folders with these names, such as `SKILL_FOLDERS`, in all of a project's folders; the first one wins.

    The order of the names comes first, then the folder that is nearest to the working directory.
    """
    root = project_root(cwd)
    folders = [*reversed(project_folders(cwd))]
    return [found for name in names for folder in folders for found in _existing_folders(folder, (name,), root)]


def _existing_folders(parent: Path, names: Sequence[str], root: Path) -> list[Path]:
    """Return those of `parent / name` that are folders within `root`. In a home, only `.agentcli` is the project's."""
    folders = [parent / name for name in names if not _is_home(parent) or name.startswith(".agentcli/")]
    real_root = os.path.realpath(root)
    return [
        folder for folder in folders if folder.is_dir() and Path(os.path.realpath(folder)).is_relative_to(real_root)
    ]


def is_project_file(file: Path, root: Path) -> bool:
    return not _is_home(root) and is_file(file)  # a home is not a project, although it may have such files


def _is_home(folder: Path) -> bool:
    with suppress(RuntimeError):  # a user without a home
        return folder == Path.home()
    return False


def is_trusted(paths: Paths, cwd: Path) -> bool:
    """Return True if the person has trusted this project's files as they are now."""
    root, trusted = project_root(cwd), trusted_digests(paths)
    try:
        return bool(trusted) and all(
            trusted.get(folder_text(folder)) == _trust_digest(folder, root)
            for folder in project_folders(cwd)
            if _files_to_trust(folder, root) or folder_text(folder) in trusted  # removed files are a change, too
        )
    except OSError:  # what cannot be read cannot be compared
        return False


def project_digests(cwd: Path) -> dict[str, str]:
    """Return digests of the project's files as they are now, by folder. Raises `ConfigError`."""
    root = project_root(cwd)
    folders = [folder for folder in project_folders(cwd) if _files_to_trust(folder, root)]
    try:
        return {folder_text(folder): _trust_digest(folder, root) for folder in folders}
    except OSError as error:
        raise ConfigError(f"cannot be trusted: some of it could not be read ({error}).", file=str(root)) from error


def trusted_digests(paths: Paths) -> dict[str, str]:
    """Return the stored trust by path: digests of projects, plugins and programs; {} if it cannot be read."""
    with suppress(OSError, msgspec.DecodeError):
        stored = msgspec.json.decode((paths.state / "trust.json").read_bytes(), type=dict[str, str])
        # Earlier versions added a stamp, with a space between.
        return {path: digest.partition(" ")[0] for path, digest in stored.items()}
    return {}


def remember_trust(paths: Paths, digests: Mapping[str, str]) -> None:
    """Trust projects and programs with these digests; an empty digest forgets its path. Raises `ConfigError`."""
    file = paths.state / "trust.json"
    try:
        trusted = msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.exists() else {}
        remaining = {name: digest for name, digest in {**trusted, **digests}.items() if digest}
        replace_private_file(file, msgspec.json.encode(remaining))
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"could not be written ({error}).", file=str(file)) from error


def _files_to_trust(folder: Path, root: Path) -> list[Path]:
    """Return the files of one project folder that need trust; for a skill only its SKILL.md."""
    files: list[Path] = []
    if folder == root:
        files += [file for name in (*PROJECT_FILES.values(), HOOKS_FILE) if is_file(file := root / name)]
        files += [root / MCP_FILE] if is_project_file(root / MCP_FILE, root) else []
        files += (file for commands in project_command_folders(root) for file in markdown_files(commands))
    in_skills = (path for skills in _existing_folders(folder, SKILL_FOLDERS, root) for path in _all_below(skills, root))
    files += (path for path in in_skills if path.name == SKILL_FILE)
    for definitions in _existing_folders(folder, (*AGENT_FOLDERS, *STYLE_FOLDERS), root):
        files += markdown_files(definitions)
    return files


def _trust_digest(folder: Path, root: Path) -> str:
    """Return a digest of all files that trust in a project's folder covers, including those beside a SKILL.md."""
    skill_folders = _existing_folders(folder, SKILL_FOLDERS, root)
    in_skills = (path for skills in skill_folders for path in _all_below(skills, root, is_strict=True))
    files = sorted({*_files_to_trust(folder, root), *in_skills})
    return _files_digest({os.fsencode(file): file for file in files})


def _files_digest(files: Mapping[bytes, Path]) -> str:
    """Return a digest of the names and contents of files, and of the targets of links."""
    import hashlib

    digest = hashlib.sha256()
    for name, file in files.items():
        digest.update(name + b"\0")
        if file.is_symlink():
            digest.update(b"link " + os.fsencode(os.path.realpath(file)) + b"\0")
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """Return a digest of all files in one of the person's folders. It does not change if the folder is moved.

    Python's caches are left out, because running a hook creates them. Raises `OSError`.
    """
    paths = sorted(path for path in _all_below(folder, folder, is_strict=True) if path.parent.name != "__pycache__")
    return _files_digest({os.fsencode(path.relative_to(folder)): path for path in paths})


def trust_folder(paths: Paths, folder: Path, digest: str) -> None:
    """Trust a folder with this digest; an empty one ends the trust. Raises `ConfigError`."""
    remember_trust(paths, {folder_text(folder): digest})


def is_folder_trusted(paths: Paths, folder: Path) -> bool:
    """Return True if the person has trusted the files of this folder as they are now."""
    with suppress(OSError):
        return trusted_digests(paths).get(folder_text(folder)) == folder_digest(folder)
    return False


def _all_below(folder: Path, root: Path, *, is_strict: bool = False) -> Iterator[Path]:
    """Yield the files below a folder; links are followed within `root`.

    With `is_strict`, raises `OSError` for an unreadable folder, or if there are too many entries in all. Otherwise such
    folders are left out.
    """
    real_root = os.path.realpath(root)
    waiting, visited, entry_count = [folder], set[str](), 0
    while waiting:
        current = waiting.pop()
        real = os.path.realpath(current)
        if real in visited or not f"{real}/".startswith(f"{real_root}/"):
            continue
        visited.add(real)
        try:
            with os.scandir(current) as entries:
                sorted_entries = sorted(entries, key=lambda entry: entry.name)
            entry_count += len(sorted_entries)
            if entry_count > _MAX_ENTRIES:
                raise OSError(errno.EFBIG, f"it contains more than {_MAX_ENTRIES:,} files", str(folder))
        except OSError:
            if is_strict:
                raise
            continue
        for entry in sorted_entries:
            if entry.is_dir():
                waiting.append(Path(entry.path))
            else:
                yield Path(entry.path)
