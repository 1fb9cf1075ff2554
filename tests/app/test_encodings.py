"""Files, names and terminals whose text is not UTF-8."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.app.running import Place, call

POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
NAME = os.fsdecode(b"caf\xe9 'a'.txt")


@pytest.fixture(scope="session")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("localedef") is None:
        pytest.skip("localedef makes the locales")
    folder = tmp_path_factory.mktemp("locales")
    for language, charset in (("en_US", "ISO-8859-1"), ("ru_RU", "KOI8-R")):
        made = ["localedef", "--no-archive", "-i", language, "-f", charset, str(folder / f"{language}.{charset}")]
        if subprocess.run(made, capture_output=True, check=False).returncode > 1:
            pytest.skip(f"there is no {charset} here")
    return folder


@pytest.fixture(params=["UTF-8", "POSIX", "ISO-8859-1", "KOI8-R"])
def foreign(request: pytest.FixtureRequest, place: Place) -> Place:
    """A place under a locale of that charset, with a file whose name is not UTF-8."""
    if request.param == "POSIX":
        place.environment |= POSIX
    elif request.param != "UTF-8":
        language = {"ISO-8859-1": "en_US", "KOI8-R": "ru_RU"}[request.param]
        locales = str(request.getfixturevalue("locales"))
        place.environment |= {"LC_ALL": f"{language}.{request.param}", "LOCPATH": locales}
    try:
        (place.folder / NAME).write_text("needle\n")
    except OSError:
        pytest.skip("names are UTF-8 on this file system")
    return place


@pytest.mark.slow
def test_a_name_that_was_listed_is_undone_whatever_its_bytes_and_the_locale(foreign: Place) -> None:
    (foreign.folder / "tést.txt").write_text("é\n", "utf-8")
    name = r"$'caf\xe9 \'a\'.txt'"
    calls = [
        call("file_list"),
        call("grep_search", pattern="needle"),
        call("file_read", path=name),
        call("bash", command=f"grep -h needle {name}"),
        call("file_edit", path=name, old_string="needle", new_string="é✓"),
    ]
    lines = "".join(json.dumps({"id": "1", **one}) + "\n" for one in calls)
    answers = foreign.run("tools", "run", "--permission-mode", "acceptEdits", stdin=lines).lines
    assert not any(answer["is_error"] for answer in answers), answers
    listed, found, read, printed, edited = (answer["structured"] for answer in answers)
    assert listed["paths"] == [name, "tést.txt"]
    assert found["matches"] == [{"path": name, "line": 1, "text": "needle"}]
    assert read["text"] == "needle\n"
    assert printed["output"].endswith("needle\n")
    assert edited["path"] == name
    ran = foreign.run("tools", "run", "file_read", b'{"path": "caf\xe9 \'a\'.txt"}')
    assert ran.lines[0]["structured"]["text"] == "é✓\n"


@pytest.mark.sampled(1)
@pytest.mark.slow
def test_arguments_pipes_and_answers_are_text_under_any_locale(foreign: Place) -> None:
    """UTF-8 is understood everywhere, other bytes in the charset of the locale, in which the answer is written."""
    charset = foreign.environment.get("LC_ALL", "").partition(".")[2] or "utf-8"
    word = {"ISO-8859-1": "café", "KOI8-R": "привет"}.get(charset, "✓")
    model = foreign.script({"text": word}, {"text": word})
    for encoding in (charset, "utf-8"):
        ran = subprocess.run(
            [*Place._command(("-m", model, "-p", f"argument {word}".encode(encoding)))],
            cwd=foreign.folder,
            env=foreign.environment,
            input=f"pipe {word}".encode(encoding),
            capture_output=True,
            check=True,
        )
        if foreign.environment.get("LC_ALL") == "POSIX":
            assert ran.stdout == rf"{word}\n".encode("ascii", "backslashreplace").replace(rb"\n", b"\n")
        else:
            assert ran.stdout == f"{word}\n".encode(charset)
        newest = json.loads(foreign.run("sessions", "list", "--json").out)[0]["id"]
        shown = foreign.run("sessions", "show", newest, "--json").out
        assert f"argument {word}" in shown
        assert f"pipe {word}" in shown


@pytest.mark.slow
def test_a_model_gives_a_name_back_as_it_was_listed(foreign: Place) -> None:
    replies = [{"tool_calls": [call("file_edit", path="{{last_result}}", old_string="needle", new_string="found")]}]
    model = foreign.script({"tool_calls": [call("file_list")]}, *replies, {"text": "done"})
    assert foreign.run("-m", model, "-p", "go", "--permission-mode", "acceptEdits").code == 0
    assert (foreign.folder / NAME).read_text() == "found\n"
    assert foreign.run("undo", "--yes").code == 0
    assert (foreign.folder / NAME).read_text() == "needle\n"


def test_a_setting_names_the_charset_of_files_that_are_not_utf_8(place: Place) -> None:
    file = place.folder / "a.c"
    file.write_bytes('char *a = "表";\n'.encode("cp932"))
    edit = json.dumps({"path": "a.c", "old_string": "表", "new_string": "図"})
    refused = place.run("tools", "run", "--permission-mode", "acceptEdits", "file_edit", edit)
    assert refused.code == 1
    assert "not certain" in refused.out
    assert "tools.charset" in refused.out
    done = place.run(
        "tools",
        "run",
        "--permission-mode",
        "acceptEdits",
        "file_edit",
        edit,
        env={"AGENTCLI_TOOLS_CHARSET": "shift_jis"},
    )
    assert done.code == 0, done.out
    assert file.read_bytes() == 'char *a = "図";\n'.encode("cp932")
