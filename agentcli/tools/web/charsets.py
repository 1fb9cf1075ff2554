"""Reads bytes of the web as text, in the character set they say they are in."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

_SNIFFED = 2_048  # bytes at the start of a page in which it may say its character set


def decoded(body: bytes, content_type: str) -> str:
    """The body in the character set of its byte order mark, its header, or its own first lines; else UTF-8.

    The order is that of the WHATWG Encoding and HTML standards. What does not fit becomes U+FFFD; a page that says
    nothing and is no UTF-8 is read as Windows-1252.
    """
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(codec, errors="replace")
    said = re.search(r"charset\s*=\s*[\"']?([^\s\"';]+)", content_type, re.IGNORECASE)
    codec = codec_of(said[1]) if said else ""
    if not codec and (inside := _SAID_INSIDE.search(body[:_SNIFFED])):
        codec = codec_of((inside[1] or inside[2]).decode("ascii"))
        codec = "utf-8" if codec.startswith("utf-16") else codec  # it could not have been read so far
    if codec:
        return body.decode(codec, errors="replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        # One broken character of a long text is no reason to misread all the others.
        text = body.decode("utf-8", errors="replace")
        rare = text.count("\ufffd") * 200 < len(text) or error.start > len(body) - 4
        return text if rare else body.decode("cp1252", errors="replace")


def codec_of(label: str) -> str:
    """Python's codec for a label of the WHATWG Encoding standard; empty for any other: Python knows odd ones."""
    return _CODECS.get(label.strip().lower(), "")


def _labels(rows: Sequence[str]) -> dict[str, str]:
    table: dict[str, str] = {}
    for row in rows:
        codec, *labels = row.split()
        table |= dict.fromkeys(labels, codec)
    return table


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
)
_SAID_INSIDE = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)|\A\s*<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w.:-]+)",
    re.IGNORECASE,
)
# Labels of https://encoding.spec.whatwg.org/#names-and-labels (read 2026-11), after Python's name for what they mean.
_CODECS = _labels(
    (
        "utf-8 utf-8 utf8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8",
        "utf-16-le utf-16 utf-16le unicode ucs-2 iso-10646-ucs-2 csunicode unicodefeff",
        "utf-16-be utf-16be unicodefffe",
        "cp1252 windows-1252 cp1252 x-cp1252 ascii us-ascii ansi_x3.4-1968 iso-8859-1 iso8859-1 iso88591 iso_8859-1",
        "cp1252 latin1 l1 cp819 ibm819 csisolatin1 iso-ir-100",
        "iso8859-2 iso-8859-2 iso8859-2 iso88592 iso_8859-2 latin2 l2 csisolatin2",
        "iso8859-3 iso-8859-3 iso8859-3 latin3 l3",
        "iso8859-4 iso-8859-4 iso8859-4 latin4 l4",
        "iso8859-5 iso-8859-5 iso8859-5 cyrillic",
        "iso8859-6 iso-8859-6 iso8859-6 arabic asmo-708",
        "iso8859-7 iso-8859-7 iso8859-7 greek greek8",
        "iso8859-8 iso-8859-8 iso8859-8 hebrew visual iso-8859-8-i logical",
        "iso8859-10 iso-8859-10 iso8859-10 latin6 l6",
        "iso8859-13 iso-8859-13 iso8859-13",
        "iso8859-14 iso-8859-14 iso8859-14",
        "iso8859-15 iso-8859-15 iso8859-15 latin9 l9 iso_8859-15",
        "iso8859-16 iso-8859-16",
        "koi8-r koi8-r koi8 koi koi8_r cskoi8r",
        "koi8-u koi8-u koi8-ru",
        "mac-roman macintosh mac x-mac-roman",
        "mac-cyrillic x-mac-cyrillic x-mac-ukrainian",
        "cp866 ibm866 866 cp866",
        "cp874 windows-874 iso-8859-11 tis-620 dos-874",
        "cp1250 windows-1250 cp1250 x-cp1250",
        "cp1251 windows-1251 cp1251 x-cp1251",
        "cp1253 windows-1253 cp1253 x-cp1253",
        "cp1254 windows-1254 cp1254 x-cp1254 iso-8859-9 latin5 l5",
        "cp1255 windows-1255 cp1255 x-cp1255",
        "cp1256 windows-1256 cp1256 x-cp1256",
        "cp1257 windows-1257 cp1257 x-cp1257",
        "cp1258 windows-1258 cp1258 x-cp1258",
        "gb18030 gb18030 gbk x-gbk gb2312 gb_2312-80 chinese csgb2312 iso-ir-58",
        "big5hkscs big5 big5-hkscs cn-big5 x-x-big5 csbig5",
        "euc_jp euc-jp x-euc-jp",
        "iso2022_jp iso-2022-jp csiso2022jp",
        "cp932 shift_jis shift-jis sjis x-sjis windows-31j ms_kanji ms932 csshiftjis",
        "cp949 euc-kr ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 korean windows-949 cseuckr",
    )
)
