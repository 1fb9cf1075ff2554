"""Attaches the files that a prompt names: `@path`, `@path:10-40`, `@folder`; for small models also bare names."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agentcli.errors import ToolError, UsageError
from agentcli.llm.messages import Block, Text
from agentcli.patterns import lazy_pattern
from agentcli.tools.builtin.toolset import FileRead
from agentcli.tools.workspace import Workspace, display_name

_MENTION = lazy_pattern(r"(?<![\w@])@(?:\"([^\"]+)\"(:\d+(?:-\d+)?)?|([^\s\"'`,;]+))")
PUNCTUATION = ".:!?)]}>*_”’…。，、！？）"
_BARE_NAME = lazy_pattern(r"(?<![\w@/.-])((?:[\w.-]+/)*[\w-]+\.[A-Za-z0-9]{1,6})(?![\w/])")
_LINES = lazy_pattern(r"(.+?):([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?")
_FILE_TAG, _FOLDER_TAG = "<file path=", "<folder path="
_NOT_ATTACHED = "[not attached: "
_UNATTACHED = lazy_pattern(rf'{_FILE_TAG}"(.*)">\n{re.escape(_NOT_ATTACHED)}(.*)\]\n</file>\Z', re.DOTALL)
MAX_LISTED = 100  # names in a folder


def typed_blocks(content: Sequence[Block]) -> list[Block]:
    """Return the blocks of a prompt without the files that were attached because the prompt names them."""
    tags = (_FILE_TAG, _FOLDER_TAG)
    return [*content[:1], *(b for b in content[1:] if not (isinstance(b, Text) and b.text.startswith(tags)))]


def typed_text(content: Sequence[Block]) -> str:
    return "\n".join(block.text for block in typed_blocks(content) if isinstance(block, Text))


def with_attachments(
    prompt: str, workspace: Workspace, *, bare_names: bool, typed: str | None = None
) -> tuple[Block, ...]:
    """Return the prompt, and each file that it names or the reason why the file cannot be attached.

    `typed` is the part of the prompt in which names count, by default all of it. With `bare_names`, for small models,
    names without @ are attached too.
    """
    typed = prompt if typed is None else typed
    blocks: list[Block] = [Text(prompt)]
    mentioned = {*_names(typed, bare_names=False)}  # a failure is reported only for names with @
    for name in dict.fromkeys(_names(typed, bare_names=bare_names)):
        try:
            blocks += _attached(name, workspace)
        except (ToolError, OSError) as error:  # a name that is too long raises OSError
            if name in mentioned and _is_file(name, workspace):
                blocks.append(foreign_text(name, f"{_NOT_ATTACHED}{error}]"))
    return tuple(blocks)


def unattached_files(content: Sequence[Block]) -> list[str]:
    """Return sentences about the files named in a prompt that `with_attachments` could not attach."""
    texts = (block.text for block in content[1:] if isinstance(block, Text))
    return [f"{match[1]} was not attached: {match[2]}" for match in map(_UNATTACHED.match, texts) if match]


def foreign_text(name: str, text: str) -> Text:
    """Return a text that the person did not type, in the form of an attached file."""
    return Text(f'{_FILE_TAG}"{name}">\n{text}\n</file>')


def attached_file(path: Path, workspace: Workspace) -> Sequence[Block]:
    """Return the blocks of a file, in any folder, that a caller attaches: image, PDF or text. Raises `UsageError`."""
    from agentcli.tools.builtin.file_read import read_file

    try:
        output = read_file(FileRead(str(path)), path, workspace)
    except (ToolError, OSError) as error:
        raise UsageError(f"{path} cannot be attached: {error}") from error
    return (foreign_text(path.name, output.content),) if isinstance(output.content, str) else output.content or ()


def _attached(name: str, workspace: Workspace) -> Sequence[Block]:
    """Return the blocks to attach for a name; none if it names no file or folder. Raises `ToolError`, `OSError`."""
    from agentcli.tools.builtin.file_read import read_file
    from agentcli.tools.builtin.files import MAX_CHECKED_BYTES, syntax_note

    path = workspace.usable_path(name, "read")
    match workspace.look(path).kind:
        case "file":
            output = read_file(FileRead(name), path, workspace)
        case "folder":
            return _attached_folder(name, path)
        case None:  # nothing has this name; it may be `path:10-40`
            lines = _LINES.fullmatch(name)
            return _attached_lines(lines[1], int(lines[2]), int(lines[3] or lines[2]), workspace) if lines else ()
        case _:
            raise ToolError(f"{name} is not a regular file.", kind="invalid_parameters")
    if not isinstance(output.content, str):
        return output.content or ()
    with workspace.sandbox.read(path) as file:
        note = syntax_note(path, file.read(MAX_CHECKED_BYTES + 1))
    return (foreign_text(name, f"{output.content}\n{note}" if note else output.content),)


def _is_file(name: str, workspace: Workspace) -> bool:
    """Return True if something other than a folder has this name: a mention such as `@/lib` rarely means a folder."""
    with suppress(ToolError):
        return workspace.look(workspace.lexical_path(name)).kind not in (None, "folder")
    return False


def _attached_lines(name: str, first: int, last: int, workspace: Workspace) -> Sequence[Block]:
    """Return the lines of a text file that `path:10-40` attaches, or an error text if they are past its end."""
    from agentcli.tools.builtin.file_read import read_file

    path = workspace.usable_path(name, "read")
    if workspace.look(path).kind != "file":
        return ()
    first, last = sorted((first, last))  # people also write 40-10
    try:
        content = read_file(FileRead(name, first, last - first + 1), path, workspace).content
    except ToolError as error:
        content = f"[{error}]"
    lines = f"{first}-{last}" if last > first else str(first)
    return (Text(f'{_FILE_TAG}"{name}" lines="{lines}">\n{content}\n</file>'),) if isinstance(content, str) else ()


def _attached_folder(name: str, folder: Path) -> Sequence[Block]:
    with os.scandir(folder) as found:  # it knows which entries are folders without looking at each of them
        names = sorted(display_name(f"{entry.name}/" if _leads_to_folder(entry) else entry.name) for entry in found)
    more = [f"[{len(names) - MAX_LISTED} more]"] if len(names) > MAX_LISTED else []
    listing = "\n".join([*names[:MAX_LISTED], *more])
    return (Text(f'{_FOLDER_TAG}"{name}">\n{listing}\n</folder>'),)


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    return Path(entry).is_dir() if entry.is_symlink() else entry.is_dir()  # `DirEntry` raises for a loop of links


def _names(prompt: str, *, bare_names: bool) -> Iterator[str]:
    """Yield the names that a prompt mentions, with and without punctuation after them, which may end a sentence."""
    # `@"a b":10-40` has the groups `quoted` and `lines`, `@a` only `plain`.
    for quoted, lines, plain in _MENTION.findall(prompt) if "@" in prompt else ():
        yield quoted + lines or plain
        yield plain.rstrip(PUNCTUATION)
    if bare_names:
        yield from _BARE_NAME.findall(prompt)


# A mention at the beginning of a word: not `me@example.com`, nor anything in quotation marks.
_PATH_MENTION = lazy_pattern(r"(?:^|(?<=[\s(]))@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<plain>[^\s\"'`,;]+))")
_CODE = lazy_pattern(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_LINE_SUFFIX = lazy_pattern(r":\d+(?:-\d+)?\Z")
_ANCHOR = lazy_pattern(r"#L?\d+(?:-L?\d+)?\Z")  # lines as in a web address
_NO_PATH = lazy_pattern(r"[(){}\[\]<>=|\\$*#@:?!&%]")  # characters of calls, versions and addresses
_EXTENSIONS = frozenset(
    "py pyi ipynb js mjs cjs jsx ts tsx vue svelte html htm css scss less json jsonl json5 toml yaml yml xml ini cfg "
    "conf env lock md mdx rst txt tex csv tsv sql sh bash zsh fish ps1 bat c h cc cpp cxx hpp rs go java kt kts scala "
    "rb php pl lua swift m mm cs fs ex exs erl hs ml clj dart zig nim proto graphql tf gradle cmake mk diff log pdf "
    "png jpg jpeg gif webp svg".split()
)


def missing_files_notice(typed: str, folder: Path) -> str:
    """Return a sentence about the files named in a prompt that do not exist; empty if there are none."""
    names = ", ".join(f"@{name}" for name in missing_files(typed, folder))
    return f"Not found: {names}. The message was sent unchanged." if names else ""


def missing_files(typed: str, folder: Path) -> list[str]:
    """Return the mentions to warn about: they look like paths, unlike `@property` or `@alice`, but name no file."""
    if "@" not in typed:
        return []
    names = {  # each with True if it is quoted
        match["quoted"] or match["plain"].rstrip(PUNCTUATION): bool(match["quoted"])
        for match in _PATH_MENTION.finditer(_CODE.sub(" ", typed))
    }
    return [name for name, is_quoted in names.items() if name and _is_missing(name, folder, is_quoted=is_quoted)]


def _is_missing(name: str, folder: Path, *, is_quoted: bool) -> bool:
    """Return True if no file has this name, and it was meant as a path, unlike `@property`."""
    if _exists(name, folder) or _exists(_LINE_SUFFIX.sub("", name), folder):
        return False
    if is_quoted or (_ANCHOR.search(name) and _exists(_ANCHOR.sub("", name), folder)):
        return True  # with `#L9` no file is attached, because only `:9` selects lines
    if name.startswith("/") or _NO_PATH.search(name):  # `@/lib/utils.ts` may be an alias in an import
        return False
    first, *others = name.split("/")
    has_extension = "." in name and name.rstrip("/").rpartition(".")[2].lower() in _EXTENSIONS
    is_deep = len(others) > 1 and _exists(first, folder)  # `@types/node` is a package even if a folder `types` exists
    return first in ("~", ".", "..") or has_extension or is_deep


def _exists(name: str, folder: Path) -> bool:
    # Suppressed: the name may be too long, contain a NUL, or begin with a `~user` who has no home folder.
    with suppress(OSError, ValueError, RuntimeError):
        return (folder / Path(name).expanduser()).exists()
    return False
