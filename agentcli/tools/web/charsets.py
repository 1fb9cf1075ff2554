"""Reads bytes of the web as text, in the character set they say they are in."""

from __future__ import annotations

import codecs
import re

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"))
_IN_HEADER = re.compile(r"charset\s*=\s*[\"']?([^\s\"';]+)", re.IGNORECASE)
_IN_PAGE = re.compile(
    r"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)|\A\s*<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w.:-]+)",
    re.IGNORECASE,
)
# Codecs of characters alone: Python also has some that compress, escape, or read UTF-7.
_TEXT_CODECS = re.compile(
    r"ascii|utf-(8|16|16-[bl]e)|cp\d+|iso8859-\d+|iso2022_jp|koi8-[ru]|euc_\w+|gb\w+|big5\w*|shift_jis|mac-\w+"
)
# Wider codecs that browsers read these with (WHATWG Encoding).
_WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "gb2312": "gb18030",
    "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949", "utf-16": "utf-16-le",
}  # fmt: skip


def decoded(body: bytes, content_type: str) -> str:
    """Return the body in the charset of its byte order mark, header or first lines, else as UTF-8 or Windows-1252."""
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(codec, errors="replace")
    header, page = _IN_HEADER.search(content_type), _IN_PAGE.search(body[:2_048].decode("latin-1"))
    codec = codec_of(header[1]) if header else ""
    if not codec and page:
        codec = codec_of(page[1] or page[2])
        codec = "utf-8" if codec.startswith("utf-16") else codec  # it could not have been read so far
    try:
        return body.decode(codec or "utf-8", errors="replace" if codec else "strict")
    except UnicodeDecodeError as error:
        # One broken character of a long text is no reason to misread all the others.
        text = body.decode("utf-8", errors="replace")
        rare = text.count("\ufffd") * 200 < len(text) or error.start > len(body) - 4
        return text if rare else body.decode("cp1252", errors="replace")


def codec_of(label: str) -> str:
    """Return Python's codec for a label, or the wider one that browsers use; empty for an unknown label."""
    try:
        name = codecs.lookup(label.strip().lower().removeprefix("x-")).name
    except (LookupError, ValueError):  # a null character is no label either
        return ""
    return _WIDER.get(name, name) if _TEXT_CODECS.fullmatch(name) else ""
