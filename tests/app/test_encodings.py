"""Files, names and terminals whose text is not UTF-8."""

from __future__ import annotations

import json

from tests.app.running import Place


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
