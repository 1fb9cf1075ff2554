"""The pager and the editor a person chose, and what happens when they fail."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from agentcli.errors import UserError
from agentcli.frontends.terminal.programs import edit_text, run_pager

SYSTEM = "/usr/bin:/bin"


def program(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def show(text: str, environment: dict[str, str], *, line: int = 1) -> None:
    asyncio.run(run_pager(text, environment, line=line))


def edited(text: str, environment: dict[str, str]) -> str:
    return asyncio.run(edit_text(text, {"PATH": SYSTEM, **environment}))


def test_the_pager_gets_the_text_and_its_arguments(tmp_path: Path) -> None:
    pager = program(
        tmp_path, "my pager", f'echo "$@" > {tmp_path}/seen; cat >> {tmp_path}/seen; echo $LESS >> {tmp_path}/seen'
    )
    show("ü\ntwo\n", {"PATH": SYSTEM, "PAGER": f"'{pager}' -x 'a b'"})
    assert (tmp_path / "seen").read_text() == "-x a b\nü\ntwo\nR\n"


def test_without_a_custom_pager_less_and_then_more_is_used(tmp_path: Path) -> None:
    cat = f"/bin/cat > {tmp_path}/seen; echo $0 $* >> {tmp_path}/seen"
    program(tmp_path, "more", cat)
    for environment in ({}, {"PAGER": ""}, {"PAGER": "no-such-pager"}, {"PAGER": "'open"}):
        show("text\n", {"PATH": str(tmp_path), **environment})
        assert (tmp_path / "seen").read_text() == f"text\n{tmp_path}/more\n"
    program(tmp_path, "less", cat)
    show("text\n", {"PATH": str(tmp_path)})
    assert (tmp_path / "seen").read_text() == f"text\n{tmp_path}/less -R\n"


@pytest.mark.parametrize(("name", "seen"), [("less", "+3\none\ntwo\nthree\n"), ("other", "\nthree\n")])
def test_a_pager_begins_at_the_line_or_gets_the_text_from_there_on(tmp_path: Path, name: str, seen: str) -> None:
    pager = program(tmp_path, name, f'echo "$@" > {tmp_path}/seen; cat >> {tmp_path}/seen')
    show("one\ntwo\nthree\n", {"PATH": SYSTEM, "PAGER": pager}, line=3)
    assert (tmp_path / "seen").read_text() == seen


def test_without_any_pager_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No pager was found"):
        show("all of it", {"PATH": str(tmp_path)})


def test_a_pager_that_is_left_early_is_not_an_error(tmp_path: Path) -> None:
    show("x" * 1_000_000, {"PATH": SYSTEM, "PAGER": program(tmp_path, "early", "exit 3")})


def test_ctrl_c_is_the_pagers_while_it_runs(tmp_path: Path) -> None:
    script = f"cat > {tmp_path}/seen; kill -INT $PPID; kill -QUIT $PPID; kill -INT $$; echo alive >> {tmp_path}/seen"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    try:
        show("text\n", {"PATH": SYSTEM, "PAGER": program(tmp_path, "pager", script)})
        assert (tmp_path / "seen").read_text() == "text\n"  # the pager itself is not deaf
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_text_comes_back_as_the_editor_left_it(tmp_path: Path) -> None:
    look = f'echo "$1 $2" > {tmp_path}/called; ls -l "$2" > {tmp_path}/listed; cat "$2" > {tmp_path}/was'
    editor = program(tmp_path, "ed", f'{look}; printf "new\\r\\nü\\n" > "$2"')
    assert edited("old ü", {"EDITOR": f"{editor} --wait"}) == "new\nü"
    assert (tmp_path / "was").read_text() == "old ü"
    assert (tmp_path / "listed").read_text().startswith("-rw-------")
    option, file = (tmp_path / "called").read_text().split()
    assert option == "--wait"
    assert file.endswith(".md")
    assert not Path(file).parent.exists()


def test_visual_comes_before_editor(tmp_path: Path) -> None:
    visual = program(tmp_path, "visual", 'echo visual > "$1"')
    assert edited("x", {"VISUAL": visual, "EDITOR": "no-such-editor"}) == "visual"


@pytest.mark.parametrize("script", ['echo new > "$1"; exit 1', 'echo new > "$1"; kill -9 $$'])
def test_an_editor_that_fails_changes_nothing(tmp_path: Path, script: str) -> None:
    assert edited("as it was", {"EDITOR": program(tmp_path, "ed", script)}) == "as it was"


@pytest.mark.parametrize("editor", ["no-such-editor --wait", "'open", "/no/such/editor"])
def test_a_missing_editor_is_named(editor: str) -> None:
    with pytest.raises(UserError, match=r"was not found\. Set \$EDITOR") as caught:
        edited("x", {"EDITOR": editor})
    assert editor in str(caught.value)


def test_an_editor_that_takes_the_file_away_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not edit the text: No such file"):
        edited("x", {"EDITOR": program(tmp_path, "ed", 'rm "$1"')})


def test_bytes_that_are_not_text_lose_themselves_only(tmp_path: Path) -> None:
    assert edited("a\udcffb", {"EDITOR": program(tmp_path, "ed", 'printf "\\377" >> "$1"')}) == "a?b�"


def test_an_editor_that_does_not_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "ed").write_bytes(b"\x7fELF no program")
    (tmp_path / "ed").chmod(0o755)
    with pytest.raises(UserError, match=r"ed' could not edit the text: .*, set \$EDITOR"):
        edited("x", {"EDITOR": str(tmp_path / "ed")})


def test_a_pager_does_not_outlive_who_waits_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        pager = program(tmp_path, "pager", f"cat > /dev/null; echo $$ > {tmp_path}/started; exec sleep 60")
        showing = asyncio.ensure_future(run_pager("text", {"PATH": SYSTEM, "PAGER": pager}))
        while not (tmp_path / "started").exists() or not (tmp_path / "started").read_text():
            await asyncio.sleep(0.01)
        showing.cancel()
        await asyncio.wait([showing])

    before = signal.getsignal(signal.SIGINT)
    asyncio.run(asyncio.wait_for(run(), 10))
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)
