"""Files named in a prompt: what is attached, and what stays plain text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image as PillowImage

from agentcli.conversation.mentions import typed_blocks, unattached_files, with_attachments
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.llm.messages import Image, Text
from agentcli.tools.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    ws = tmp_path / "ws"
    for name in (
        "main.py",
        "src/app.py",
        "with space.md",
        "Makefile",
        "文件.txt",
        "src/(group)/page.tsx",
        "notes(1)",
        "a.b-c.d",
    ):
        (ws / name).parent.mkdir(parents=True, exist_ok=True)
        (ws / name).write_text(f"# text of {name}\n")
    (tmp_path / "outside.txt").write_text("secret\n")
    (ws / "link.txt").symlink_to("../outside.txt")
    return Workspace(cwd=ws, sandbox=LocalSandbox([ws], environment={}, job_folder=tmp_path / "jobs"))


def attached(prompt: str, workspace: Workspace, *, bare_names: bool = False) -> list[str]:
    """The names of the files attached to a prompt, which itself must come first and unchanged."""
    first, *rest = with_attachments(prompt, workspace, bare_names=bare_names)
    assert first == Text(prompt)
    names = []
    for block in rest:
        assert isinstance(block, Text)
        name = block.text.split('"')[1]
        assert block.text == f'<file path="{name}">\n1\t# text of {name}\n</file>'
        names.append(name)
    return names


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("@main.py", ["main.py"]),
        ("explain @main.py and @src/app.py", ["main.py", "src/app.py"]),
        ("see @main.py.", ["main.py"]),
        ("see @main.py, please", ["main.py"]),
        ("see (@main.py)", ["main.py"]),
        ("see [@main.py]!", ["main.py"]),
        ("why @main.py?", ["main.py"]),
        ("in @main.py: fix it", ["main.py"]),
        ("in @main.py...", ["main.py"]),
        ("**@main.py**", ["main.py"]),
        ("<@main.py>", ["main.py"]),
        ("“@main.py”", ["main.py"]),
        ("看 @main.py。", ["main.py"]),
        ("'@main.py' and `@src/app.py`", ["main.py", "src/app.py"]),
        ("@main.py's end", ["main.py"]),
        ('@"with space.md" now', ["with space.md"]),
        ("@with space.md", []),
        ("@文件.txt", ["文件.txt"]),
        ("@Makefile", ["Makefile"]),
        ("@src/(group)/page.tsx", ["src/(group)/page.tsx"]),
        ("@notes(1)", ["notes(1)"]),
        ("@a.b-c.d", ["a.b-c.d"]),
        ("first\n@main.py\nlast", ["main.py"]),
        ("@main.py @main.py", ["main.py"]),
    ],
)
def test_a_mentioned_file_is_attached(workspace: Workspace, prompt: str, names: list[str]) -> None:
    assert attached(prompt, workspace) == names


@pytest.mark.parametrize(
    "prompt",
    [
        "mail me@main.py",
        "mail joe.doe@main.py today",
        "@@main.py",
        "@gone.py",
        "@",
        "@ main.py",
        '@""',
        "@pytest.mark.skip",
        "main.py",
        "@..",
        "@/etc",
        "@~/x",
        "@~nobody-of-that-name/x",
        "@~nobody-of-that-name",
        "@" + "x" * 5_000,
        "@" + "d/" * 3_000,
        "@a\0b",
        "@\ud800",
        "",
    ],
)
def test_mentions_of_unknown_files_stay_text(workspace: Workspace, prompt: str) -> None:
    assert attached(prompt, workspace) == []


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("fix main.py", ["main.py"]),
        ("fix main.py.", ["main.py"]),
        ("compare main.py, src/app.py", ["main.py", "src/app.py"]),
        ("@main.py and main.py", ["main.py"]),
        ("version 1.5 of e.g. gone.py", []),
        ("../outside.txt", []),
        ("see x/main.py and me@main.py", []),
    ],
)
def test_bare_names_are_attached_only_when_asked_for(workspace: Workspace, prompt: str, names: list[str]) -> None:
    assert attached(prompt, workspace, bare_names=True) == names
    assert attached(prompt.replace("@main", "main"), workspace) == []


def test_an_image_is_attached_as_a_block(workspace: Workspace) -> None:
    PillowImage.new("RGB", (2, 2)).save(workspace.cwd / "a.png")
    _, note, image = with_attachments("what is on @a.png?", workspace, bare_names=False)
    assert isinstance(note, Text)
    assert isinstance(image, Image)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("binary", "binary file"),
        ("pipe", "not a regular file"),
        ("../outside.txt", "outside"),
        ("/etc/passwd", "outside"),
        ("link.txt", "outside"),
    ],
)
def test_the_model_and_the_person_hear_of_a_file_that_cannot_be_attached(
    workspace: Workspace, name: str, why: str
) -> None:
    (workspace.cwd / "binary").write_bytes(b"\0\1")
    os.mkfifo(workspace.cwd / "pipe")
    content = with_attachments(f"look at @{name}.", workspace, bare_names=False)
    first, note = content
    assert first == Text(f"look at @{name}.")
    assert isinstance(note, Text)
    assert note.text.startswith(f'<file path="{name}">\n[not attached: ')
    assert why in note.text
    (notice,) = unattached_files(content)
    assert notice.startswith(f"{name} was not attached: ")
    assert why in notice
    assert unattached_files((note,)) == []  # the person's own words


def test_an_attached_file_counts_as_read(workspace: Workspace) -> None:
    with_attachments("@main.py", workspace, bare_names=False)
    path = workspace.cwd / "main.py"
    workspace.files.require_current(path.resolve(), path.read_bytes())


def test_a_long_file_is_attached_to_its_first_page(workspace: Workspace) -> None:
    (workspace.cwd / "long").write_text("a line of some length\n" * 50_000)
    _, block = with_attachments("@long", workspace, bare_names=False)
    assert isinstance(block, Text)
    assert len(block.text) < 60_000
    assert "continue with offset=" in block.text


@pytest.mark.parametrize(
    ("name", "lines", "shown"),
    [
        ("lines.txt:3-5", "3-5", "3\tthree\n4\tfour\n5\tfive"),
        ("lines.txt:2", "2", "2\ttwo"),
        ("lines.txt:5-900", "5-900", "5\tfive"),
        ('"lines.txt:1-1"', "1", "1\tone"),
        ('"lines.txt":2-3', "2-3", "2\ttwo\n3\tthree"),
        ("lines.txt:4-2", "2-4", "2\ttwo"),
        ("lines.txt:70-80", "70-80", "[lines.txt has 5 lines; offset 70 is past its end.]"),
    ],
)
def test_some_lines_of_a_file_can_be_named(workspace: Workspace, name: str, lines: str, shown: str) -> None:
    (workspace.cwd / "lines.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    _, attached = with_attachments(f"see @{name}, please", workspace, bare_names=False)
    assert isinstance(attached, Text)
    assert attached.text.startswith(f'<file path="lines.txt" lines="{lines}">\n{shown}')


@pytest.mark.parametrize("name", ["main.py:0", "gone.py:3", "main.py:x", "src:3", "../outside.txt:1"])
def test_lines_that_name_nothing_stay_text(workspace: Workspace, name: str) -> None:
    assert with_attachments(f"@{name}", workspace, bare_names=False) == (Text(f"@{name}"),)


def test_a_file_whose_name_ends_like_lines_is_meant_itself(workspace: Workspace) -> None:
    (workspace.cwd / "main.py:3").write_text("# text of main.py:3\n")
    assert attached("@main.py:3", workspace) == ["main.py:3"]


def test_a_folder_is_listed_up_to_a_bound(workspace: Workspace) -> None:
    for number in range(120):
        (workspace.cwd / f"many/f{number:03}").mkdir(parents=True)
    (workspace.cwd / "many/a.txt").write_text("x")
    (workspace.cwd / "many/circle").symlink_to("circle")
    (workspace.cwd / "many/b").symlink_to("f000")
    prompt, listed = with_attachments("what is in @many?", workspace, bare_names=False)
    assert isinstance(listed, Text)
    assert listed.text.startswith('<folder path="many">\na.txt\nb/\ncircle\nf000/\nf001/\n')
    assert listed.text.endswith("f096/\n[23 more]\n</folder>")
    assert typed_blocks((prompt, listed)) == [prompt]


def test_a_large_folder_is_listed_without_a_look_at_each_file(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workspace.cwd / "many"
    folder.mkdir()
    for number in range(500):
        (folder / f"f{number}").touch()
    looks: list[object] = []
    look = os.stat

    def counted(path: str | int, **options: bool) -> os.stat_result:
        looks.append(path)
        return look(path, **options)

    monkeypatch.setattr(os, "stat", counted)
    _, listed = with_attachments("what is in @many?", workspace, bare_names=False)
    assert isinstance(listed, Text)
    assert listed.text.endswith("[400 more]\n</folder>")
    assert len(looks) < 100
