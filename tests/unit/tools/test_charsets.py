"""Files in legacy charsets: changed in their own characters where the charset is certain, else in ASCII alone."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.tools.text.apply import changes_only_ascii
from agentcli.tools.text.encoding import decode, without_surrogates
from tests.properties import examples
from tests.unit.tools.bench import Bench

TEXTS = {
    "cp932": "; 設定ファイル 日本語のコメントです\nkey=値\nmode=1\n",
    "euc_jp": "# 日本語のコメント\nprint('こんにちは')\nmode=1\n",
    "gbk": "/* 中文注释，测试文件编码 */\nmode=1\n",
    "big5": "/* 這是一個測試檔案，繁體中文註解 */\nmode=1\n",
    "euc_kr": "/* 한국어 주석입니다 */\nmode=1\n",
    "koi8-r": "// Проверка кодировки файла\nmode=1\n",
    "cp1251": "<?php // Привет, это русский комментарий\nmode=1\n",
}
ADDED = {
    "cp932": "追加",
    "euc_jp": "追加",
    "gbk": "é加",
    "big5": "增加",
    "euc_kr": "추가",
    "koi8-r": "ещё",
    "cp1251": "ещё",
}


SETTINGS = {
    "cp932": "shift_jis",
    "euc_jp": "euc-jp",
    "gbk": "gbk",
    "big5": "big5",
    "euc_kr": "euc-kr",
    "koi8-r": "koi8-r",
    "cp1251": "windows-1251",
}


@pytest.mark.parametrize("codec", TEXTS)
def test_a_named_charset_is_read_and_written_in_its_own_characters(bench: Bench, codec: str) -> None:
    bench.workspace.settings.charset = SETTINGS[codec]
    path = bench.put("a", TEXTS[codec].encode(codec))
    read = bench.call("file_read", path="a")
    assert read.structured == {"text": TEXTS[codec], "total_lines": TEXTS[codec].count("\n"), "encoding": codec}
    assert "guess" not in str(read.content)
    bench.call("file_edit", path="a", old_string="mode=1", new_string=f"mode=2 # {ADDED[codec]}")
    assert path.read_bytes() == TEXTS[codec].replace("mode=1", f"mode=2 # {ADDED[codec]}").encode(codec)


@pytest.mark.parametrize("codec", SETTINGS)
def test_a_charset_that_nothing_names_is_a_guess_and_only_ascii_is_changed(bench: Bench, codec: str) -> None:
    path = bench.put("a", TEXTS[codec].encode(codec))
    assert "tools.charset" in bench.text("file_read", path="a")
    error = bench.fails("file_edit", path="a", old_string="mode=1", new_string=f"mode=2 # {ADDED[codec]}")
    assert "its encoding is not certain" in str(error)
    bench.call("file_edit", path="a", old_string="mode=1", new_string="mode=2")
    assert path.read_bytes() == TEXTS[codec].replace("mode=1", "mode=2").encode(codec)


@pytest.mark.parametrize(
    ("before", "edit"),
    [
        pytest.param(b'"\x95\\" "C:\\x"', {"old_string": "\\", "new_string": "/", "replace_all": True}, id="2nd byte"),
        pytest.param(b'"\x95\\"', {"old_string": '\\"', "new_string": '"'}, id="2nd byte deleted"),
        pytest.param(b'"\x95\\"', {"old_string": '\\"', "new_string": 'n\\"'}, id="put between two bytes"),
        pytest.param(b"\xbe\xee a", {"old_string": "\xbe", "new_string": "\xbe0"}, id="put between two high bytes"),
        pytest.param(b"\x810\x898 a", {"old_string": "0", "new_string": "0-"}, id="put into four bytes"),
        pytest.param(b"caf\xe9 a", {"old_string": " a", "new_string": " é"}, id="adds the same character"),
        pytest.param(b"caf\xe9 a", {"old_string": "a", "new_string": "✓", "replace_all": True}, id="adds another"),
        pytest.param(b"caf\xe9 a", {"old_string": "café", "new_string": "cafe"}, id="takes one away"),
        pytest.param(b"caf\xe9 na\xefve", {"old_string": "é naï", "new_string": "ï naé"}, id="exchanges two"),
        pytest.param("// 表".encode("cp932"), {"old_string": "//", "new_string": "// 図"}, id="its own script"),
    ],
)
def test_where_the_charset_is_not_certain_other_characters_are_not_touched(
    bench: Bench, before: bytes, edit: dict[str, object]
) -> None:
    path = bench.put("a", before)
    error = bench.fails("file_edit", path="a", **edit)
    assert "its encoding is not certain" in str(error)
    assert "charset" in str(error)
    bench.call("file_read", path="a")
    written = decode(before)
    assert written is not None
    content = without_surrogates(written.text).replace(str(edit["old_string"]), str(edit["new_string"]))
    assert "its encoding is not certain" in str(bench.fails("file_write", path="a", content=content))
    assert path.read_bytes() == before


def test_where_the_charset_is_not_certain_ascii_beside_other_characters_can_be_changed(bench: Bench) -> None:
    path = bench.put("a", b"x = 1 # caf\xe9, d\xe9j\xe0\ny = 2\n")
    bench.call("file_edit", path="a", old_string="x = 1 # café, déjà", new_string="x = 10 # - café, déjà!")
    assert path.read_bytes() == b"x = 10 # - caf\xe9, d\xe9j\xe0!\ny = 2\n"


@pytest.mark.parametrize("text", ["Lisp 模式", "全能补全 (^O^N^P)", "E115: 缺少引號: %s"])
def test_a_few_bytes_that_are_utf_8_by_chance_do_not_make_it_certain(text: str) -> None:
    decoded = decode(f"{text} 無名 例外".encode("gbk"))
    assert decoded is not None
    assert not decoded.is_certain or decoded.encoding == "gbk"


def test_a_charset_that_is_named_is_certain(bench: Bench) -> None:
    bench.workspace.settings.charset = "shift_jis"
    path = bench.put("src/a.c", 'char *a = "表";\nchar *p = "C:\\x";\n'.encode("cp932"))
    assert "表" in bench.text("file_read", path="src/a.c")
    bench.call("file_edit", path="src/a.c", old_string="\\", new_string="/追", replace_all=True)
    assert path.read_bytes() == 'char *a = "表";\nchar *p = "C:/追x";\n'.encode("cp932")


def test_one_broken_byte_does_not_make_a_file_of_utf_8_one_in_the_charset_of_the_settings(bench: Bench) -> None:
    bench.workspace.settings.charset = "iso-8859-1"
    content = "Grüße, déjà vu, señor, año, niño, ½ €\n".encode()
    path = bench.put("a", content + b"\xff mode=1\n")
    bench.call("file_edit", path="a", old_string="mode=1", new_string="é")
    assert path.read_bytes() == content + b"\xff \xc3\xa9\n"


def test_a_setting_that_the_bytes_contradict_does_not_count(bench: Bench) -> None:
    bench.workspace.settings.charset = "gbk"
    path = bench.put("a", "é✓\nmode=1\n")
    bench.call("file_edit", path="a", old_string="mode=1", new_string="中")
    assert path.read_text("utf-8") == "é✓\n中\n"


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("# café déjà vu\nname = 'José' # señor, año, niño\n", "cp1252"),
        ("/* Über größe Straße, räksmörgås på ön */\n", "cp1252"),
        ("# zażółć gęślą jaźń\n", "cp1250"),
        ("# ВЫДЕЛЕНИЕ БЛОКА\n", "cp1251"),  # in KOI8-R these are small letters
        ("# 環境変数\n", "euc_jp"),  # in EUC-KR rare characters
        ("// Ґанок і їжак\n", "koi8-u"),
    ],
)
def test_what_may_be_another_charset_is_not_taken_for_certain(text: str, codec: str) -> None:
    decoded = decode(text.encode(codec))
    assert decoded is not None
    assert decoded.text == text or not decoded.is_certain


@examples(300)
@given(content=st.binary(max_size=40), data=st.data())
@example(content=b"a\x95\\b", data=None)
def test_a_change_of_ascii_alone_leaves_all_other_bytes_in_their_order(
    content: bytes, data: st.DataObject | None
) -> None:
    decoded = decode(content)
    if decoded is None or not decoded.text or data is None:
        return
    start, end = sorted((data.draw(st.integers(0, len(decoded.text))), data.draw(st.integers(0, len(decoded.text)))))
    after = decoded.text[:start] + data.draw(st.sampled_from(["", "x", "é", "\\"])) + decoded.text[end:]
    if changes_only_ascii(decoded.text, after):
        beyond_ascii = bytes(range(0x80))
        assert decoded.encoded(after).translate(None, beyond_ascii) == content.translate(None, beyond_ascii)
