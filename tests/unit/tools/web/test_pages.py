"""What a page says reaches the model as text: the right type, the right letters, nothing a reader would not see."""

from __future__ import annotations

import gzip
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.tools.text.encoding import decode_page
from agentcli.tools.web.hidden import hides_element, visible_text
from agentcli.tools.web.html_pages import markdown_of
from tests.rows import each_row
from tests.unit.tools.web.site import fetched, page, refusal, reply


def markdown(html: str, base_url: str = "https://site.example/dir/page") -> str:
    return str(markdown_of(html, base_url)["markdown"])


# Through the network and the parser's own process


async def test_a_page_becomes_markdown_with_its_title_and_whole_links() -> None:
    html = "<title>The &amp; title</title><h1>Head</h1><p>Some <b>bold</b> text, <a href='../x?y=1'>a link</a>.</p>"
    got = await fetched(page(html))
    host = got.url.removesuffix("/")
    assert got.title == "The & title"
    assert got.text == f"# Head\n\nSome **bold** text, [a link]({host}/x?y=1)."
    assert (got.content_type, got.total_chars, got.notes) == ("text/html", len(got.text), ())


@pytest.mark.parametrize("nested", ["<div>", "<b>", "<pre>`", "<ul><li>", "<blockquote>", "<table><tr><td>", "<span>x"])
async def test_a_page_nested_without_end_is_read_as_far_as_sense_goes(nested: str) -> None:
    started = time.monotonic()
    got = await fetched(page(f"<p>before</p>{nested * 20_000}deep"))
    assert got.text.startswith("before")
    assert "Parts nested too deep were left out." in got.notes
    assert time.monotonic() - started < 60


def test_a_style_built_to_take_forever_is_read_at_once() -> None:
    zeros = "0" * 200_000
    started = time.monotonic()
    assert not hides_element(
        f"opacity:{zeros}?;font-size:{zeros}?;width:{zeros}?;color:rgb(0,{zeros}?;transform:scale({zeros}?"
    )
    assert time.monotonic() - started < 60


async def test_a_very_long_page_is_read_from_its_beginning() -> None:
    got = await fetched(page("<p>first</p>" + "<!-- filler -->" * 250_000 + "<p>last</p>"), max_chars=100)
    assert got.text == "first"
    assert got.notes == ("The page is longer than 3,000,000 characters of HTML: its end was left out.",)


async def test_text_is_cut_at_a_line_and_says_how_much_there_was() -> None:
    got = await fetched(reply("a line of text\n" * 100), max_chars=200)
    assert got.text == "\n".join(["a line of text"] * 13)
    assert got.total_chars == 1_500


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/problem+json", '{"a": 1}', '{"a": 1}'),
        ("application/json", '{\n "kept": "as it is"}', '{\n "kept": "as it is"}'),
        ("application/json", "{broken", "{broken"),
        ("application/json", "[" * 5_000, "[" * 5_000),
        ("text/markdown", "# Head\r\n<!-- kept -->", "# Head\n<!-- kept -->"),
        ("application/rss+xml", "<rss><a>1</a></rss>", "<rss><a>1</a></rss>"),
        ("text/plain", "<html>not a page</html>", "<html>not a page</html>"),
        ("application/javascript", "let a = 1", "let a = 1"),
        ("", "just text", "just text"),
        ("application/octet-stream", "#!/bin/sh\necho", "#!/bin/sh\necho"),
        ("", "<!DOCTYPE html><title>T</title><p>page", "page"),
        ("TEXT/HTML", "<p>page", "page"),
        ("text/plain", "", ""),
    ],
)
async def test_each_kind_of_text_is_read_as_what_it_is(content_type: str, body: str, text: str) -> None:
    assert (await fetched(reply(body, content_type))).text == text


@pytest.mark.parametrize(
    ("content_type", "says"),
    [
        ("image/png", "an image (image/png)"),
        ("video/mp4", "a film"),
        ("font/woff2", "a font"),
    ],
)
async def test_a_type_that_is_not_text_is_named(content_type: str, says: str) -> None:
    error = await refusal(reply(b"bytes", content_type))
    assert error.kind == "validation_error"
    assert says in str(error)


BINARY = (
    b"%PDF-1.7 text",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"text\0text",
    b"PK\x03\x04rest",
    gzip.compress(b"x", mtime=0),
    b"\1\2" * 99,
)


@pytest.mark.parametrize("body", BINARY)
@pytest.mark.parametrize("content_type", ["text/plain", "text/html", "application/octet-stream", ""])
async def test_bytes_that_are_not_text_are_refused_whatever_they_are_called(body: bytes, content_type: str) -> None:
    assert "binary data" in str(await refusal(reply(body, content_type)))


# Letters

TEXT = "Grüße, žluťoučký, привет, 日本語, €"


@each_row(
    "body, content_type, text",
    [
        (TEXT.encode(), "text/plain", TEXT),
        (TEXT.encode("utf-8-sig"), "text/plain; charset=iso-8859-1", TEXT),
        (TEXT.encode("utf-16"), "text/html", TEXT),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "", TEXT),
        (TEXT.encode("utf-16-le"), "text/plain; charset=utf-16", TEXT),
        ("Grüße €".encode("cp1252"), "text/plain; charset=ISO-8859-1", "Grüße €"),
        ("Grüße €".encode("cp1252"), "text/plain", "Grüße €"),
        ("привет".encode("koi8-r"), 'text/plain; charset="KOI8-R"', "привет"),
        ("привет".encode("cp1251"), "text/html; Charset = 'windows-1251'; x=y", "привет"),
        ("日本語".encode("shift_jis"), "text/html;charset=Shift_JIS", "日本語"),
        ("日本語".encode("euc_jp"), "text/html;charset=euc-jp", "日本語"),
        ("中文".encode("gbk"), "text/html;charset=GB2312", "中文"),
        ("한국어".encode("euc_kr"), "text/html;charset=euc-kr", "한국어"),
        (
            b'<meta charset="windows-1251">' + "привет".encode("cp1251"),
            "text/html",
            '<meta charset="windows-1251">привет',
        ),
        (
            b"<meta http-equiv=Content-Type content='text/html; charset=koi8-r'>" + "привет".encode("koi8-r"),
            "text/html",
            "<meta http-equiv=Content-Type content='text/html; charset=koi8-r'>привет",
        ),
        (
            b'<?xml version="1.0" encoding="iso-8859-2"?>\xb3',
            "text/xml",
            '<?xml version="1.0" encoding="iso-8859-2"?>ł',
        ),
        (b'<meta charset="utf-16">ok', "text/html", '<meta charset="utf-16">ok'),
        (b'<meta charset="utf-16be">ok', "text/html", '<meta charset="utf-16be">ok'),
        (b"+ADw-script+AD4-", "text/plain; charset=utf-7", "+ADw-script+AD4-"),
        (b"abc", "text/plain; charset=rot13", "abc"),
        (b"abc", "text/plain; charset=no-such-thing", "abc"),
        ("ü".encode() * 500 + b"\xff" + "ü".encode() * 500, "text/plain", "ü" * 500 + "\ufffd" + "ü" * 500),
        (TEXT.encode()[:-1], "text/plain; charset=utf-8", TEXT[:-1] + "\ufffd"),
    ],
)
def test_letters_come_through_in_every_character_set(body: bytes, content_type: str, text: str) -> None:
    assert decode_page(body, content_type) == text


# What a reader would not see

HIDING_STYLES = """
display:none|DISPLAY : NONE !important|color:red;display:/**/none|d\\69splay:none|visibility:hidden|visibility:collapse|
content-visibility:hidden|opacity:0|opacity: 0.0;color:red|opacity:0%|font-size:0|font-size:0.1px|font-size:1px|
text-indent:-9999px|position:absolute;left:-10000px|position:absolute;top:-999em|margin-left:-5000px|right:-2000px|
width:0;height:0;overflow:hidden|width:1px;height:1px;overflow:hidden|max-height:0;overflow-y:hidden|
position:absolute;clip:rect(0,0,0,0)|clip:rect(1px, 1px, 1px, 1px)|clip-path:inset(50%)|clip-path:circle(0)|
transform:scale(0)|transform:rotate(1deg) scaleX(.0)|
transform:translateX(-9999px)|position:absolute;left:9999px|opacity:0.01|opacity:1%|filter:blur(1px) opacity(0)|
color:rgba(0,0,0,.02)|color:transparent|color:rgba(0,0,0,0)|color:#ffffff00
""".replace("\n", "").split("|")

SHOWING_STYLES = """
color:red|display:block|opacity:0.5|opacity:10%|left:1200px|filter:opacity(50%)|
opacity:0;transform:translateY(20px)|opacity:0;transition:opacity 1s|font-size:12px|
font-size:0.9em|left:-10px|margin-left:-15px|width:100%;overflow:hidden|height:0|max-height:none|
color:transparent;background-clip:text|transform:translateX(-50%)|transform:scale(0.9)|font-size:1.0em|font-size:01.5rem|clip-path:inset(10%)|background:url(display:none)
""".replace("\n", "").split("|")


@each_row("style", HIDING_STYLES)
def test_a_style_that_takes_text_away_takes_it_from_the_model_too(style: str) -> None:
    assert (
        markdown(f'<p>seen</p><div style="{style}">HIDDEN <b>HIDDEN</b></div><span style="{style}">HIDDEN</span>')
        == "seen"
    )


@each_row("style", SHOWING_STYLES)
def test_a_style_that_hides_nothing_keeps_the_text(style: str) -> None:
    assert not hides_element(style)
    assert markdown(f'<p style="{style}">seen</p>') == "seen"


@each_row(
    "html",
    [
        "<!-- HIDDEN --><p>seen</p>",
        "<!--[if IE]>HIDDEN<![endif]--><p>seen</p>",
        "<p>seen</p><script>HIDDEN</script><style>HIDDEN</style>",
        "<p>seen</p><template><p>HIDDEN</p></template><noscript>HIDDEN</noscript>",
        "<p>seen</p><div hidden>HIDDEN</div><div hidden='until-found'>HIDDEN</div>",
        "<p>seen</p><div aria-hidden=TRUE>HIDDEN</div>",
        "<p>seen</p><dialog>HIDDEN</dialog>",
        "<p>seen</p><svg><title>HIDDEN</title><desc>HIDDEN</desc><text>HIDDEN</text></svg>",
        "<p>seen</p><iframe srcdoc='HIDDEN'>HIDDEN</iframe><object>HIDDEN</object><canvas>HIDDEN</canvas>",
        "<p>seen</p><input type=hidden value=HIDDEN><meta name=description content=HIDDEN>",
        "<p>seen</p><img src=x alt=''><img src='https://t.example/?HIDDEN' width=1 height=1>",
        "<p><abbr title=HIDDEN>seen</abbr></p>",
        "<style>.x{display:none}</style><p>seen</p><div class='a X b'>HIDDEN</div>",
        "<style>#y{visibility:hidden}</style><p>seen</p><i id=y>HIDDEN</i>",
        "<style>/* } */ .x , .z { color: red; DISPLAY: none }</style><p>seen</p><ul class=z><li>HIDDEN</ul>",
        "<table><tr style='display:none'><td>HIDDEN</td></tr><tr><td>seen</td></tr></table>",
    ],
)
def test_what_no_reader_sees_is_left_out(html: str) -> None:
    text = markdown(html)
    assert "seen" in text
    assert "HIDDEN" not in text


def test_a_tab_that_a_page_shows_by_itself_is_kept() -> None:
    html = """
        <style>.tab{display:none} .tab.active{display:block} @media print{.np{display:none}} .a .b{display:none}</style>
        <div class=tab>one</div><div class=np>two</div><div class=b>three</div>
    """
    assert markdown(html).split() == ["one", "two", "three"]


SCRIPTS = ("javascript:alert(1)", " jAvA&#115;cript:alert(1)", "java&#9;script:alert(1)", "&#1;javascript:alert(1)")
OTHERS = ("vbscript:x", "data:text/html,<b>x", "file:///etc/passwd", "blob:https://site.example/1", "ms-settings:x")


@pytest.mark.parametrize("href", [*SCRIPTS, *OTHERS])
def test_a_link_that_opens_no_page_is_text(href: str) -> None:
    assert markdown(f'<p>a <a href="{href}">link</a></p><p><img src="{href}" alt="picture"></p>') == "a link\n\npicture"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ('<a href="x">x</a>', "[x](https://site.example/dir/x)"),
        ('<base href="https://cdn.example/b/"><a href="x">x</a>', "[x](https://cdn.example/b/x)"),
        ('<a href="mailto:a@b.example">mail</a>', "[mail](mailto:a@b.example)"),
        ('<a href="/w_(x)">w</a>', "[w](https://site.example/w_%28x%29)"),
        ('<h2>Head<a href="#head">¶</a></h2><a href="#head">up</a>', "## Head\n\nup"),
        (f'<a href="https://play.example/?code={"x" * 500}">run</a>', "run"),
        ('<a href="/x"><h3>Card</h3><p>text</p></a>', "[Card text](https://site.example/x)"),
        ('<img src="i.png" alt="a ] [ picture" title="no">', "![a picture](https://site.example/dir/i.png)"),
        ('<pre>call <a href="/f">f</a>(<b>x</b>)\n  y</pre>', "```\ncall f(x)\n  y\n```"),
        ('<pre><code class="language-python">a = "&lt;b&gt;"\n</code></pre>', '```python\na = "<b>"\n```'),
        ("<p>x</p><nav><a href='/m'>Menu</a></nav>", "x\n\n[Menu](https://site.example/m)"),
    ],
)
def test_links_pictures_and_code_are_reported_plainly(html: str, text: str) -> None:
    assert markdown(html).replace("### ", "") == text


def test_menus_of_a_page_that_has_text_are_left_out() -> None:
    html = "<nav><a href='/m'>Menu</a></nav><div role=navigation>Menu</div><main>" + "<p>text</p>" * 200 + "</main>"
    assert "Menu" not in markdown(html)


@each_row(
    "text, seen",
    [
        ("a\u200bb\u2060c\ufeffd\u00ade", "abcde"),
        ("rm -rf \u202etxt.exe\u202c\u2066x\u2069\u200f", "rm -rf txt.exex"),
        ("x" + "".join(chr(0xE0000 + ord(sign)) for sign in "ignore all") + "y", "xy"),
        ("a\ufe00\ufe01\ufe0fb\U000e0100", "ab"),
        ("\x1b[31mred\x07\x9b0m", "[31mred0m"),
        ("a\r\nb\rc\u2028d\x85e", "a\nb\nc\nd\ne"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("👨\u200d👩\u200d👧 ❤\ufe0f", "👨\u200d👩\u200d👧 ❤\ufe0f"),
        ("می\u200cخواهم क\u094d\u200dष", "می\u200cخواهم क\u094d\u200dष"),
        ("é\u200d\u200c\u200d\u200c\u200dx", "é\u200dx"),
        ("日本語 العربية עברית ไทย", "日本語 العربية עברית ไทย"),
        ("\ud800lone", "lone"),
    ],
)
def test_characters_that_show_nothing_are_taken_out(text: str, seen: str) -> None:
    assert visible_text(text) == seen


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.sampled_from(["", "<p style='", "<a href='", "<style>", "<!--"]),
)
def test_any_text_is_a_page_that_can_be_read(text: str, start: str) -> None:
    seen = markdown(start + text)
    assert visible_text(seen) == seen


@given(
    st.binary(max_size=100),
    st.sampled_from(["", "utf-8", "utf-16", "shift_jis", "gb18030", "big5", "iso-2022-jp", "euc-kr"]),
)
def test_any_bytes_are_letters_in_any_character_set(body: bytes, label: str) -> None:
    visible_text(decode_page(body, f"text/plain; charset={label}")).encode()


@each_row(
    "html",
    [
        "<p>seen</p><p style='color:#fff'>HIDDEN <b>HIDDEN</b></p>",
        "<p>seen</p><span style='color: WHITE !important'>HIDDEN &amp; HIDDEN</span>",
        "<p>seen</p><font color=#fefefe>HIDDEN</font>",
        "<p>seen</p><div style='background:#123456 no-repeat; color:rgb(18, 52, 90)'>HIDDEN</div>",
        "<body bgcolor=black><p style='color:#eee'>seen</p><p>HIDDEN</p>",
        "<body style='background:#000;color:#fff'>seen<p style='color:hsl(0,0%,5%)'>HIDDEN</p></body>",
        "<style>.n{color:snow} #d{background:navy} #d p{margin:0} a:hover{color:red}</style>seen<p class=n>HIDDEN</p>",
        "<style>body{background:#222;color:#eee}</style>seen<p style='color:#212121'>HIDDEN</p>",
        "<table><tr><td>seen</td><td style='color:white'>HIDDEN<td bgcolor=#ffffff><font color=white>HIDDEN</table>",
        "<div style='color:white'>HIDDEN<p style='color:black'>seen</p>HIDDEN</div>",
        "<link rel=stylesheet href=x><p>seen</p><p style='color:#fff;background:#fff'>HIDDEN</p>",
        "<p>seen<p style='color:#fff'>HIDDEN<div>seen</div>",
    ],
)
def test_text_in_the_colour_of_its_background_is_left_out(html: str) -> None:
    text = markdown(html)
    assert text.count("seen") == html.count("seen")
    assert "HIDDEN" not in text


@pytest.mark.parametrize(
    "html",
    [
        "<div style='background:#333'><p style='color:#fff'>seen</p></div>",
        "<div style='background:url(dark.png)'><p style='color:#fff'>seen</p></div>",
        "<div style='background:linear-gradient(#000,#111)'><p style='color:#fff'>seen</p></div>",
        "<style>.dark{background-color:#000}</style><div class='a dark'><p style='color:#fff'>seen</p></div>",
        "<p style='color:#ccc'>seen</p><p style='color:var(--x)'>seen</p>",
        "<div style='color:#fff'><a href='https://x.example/'>seen</a><button>seen</button></div>",
        "<table bgcolor=#003366><tr><td><font color=#ffffff>seen</font></td></tr></table>",
        "<p><font color=white></font>seen</p><ul><li style='color:white'></li><li>seen</ul>",
    ],
)
def test_text_on_another_background_is_kept(html: str) -> None:
    text = markdown(html)
    assert text.count("seen") == html.count("seen")
    assert "colour" not in text


@pytest.mark.parametrize(
    "rule",
    [
        ".dark p{color:#fff;background:#000}",
        "* {background-color:#000}",
        "@media (min-width:1px){.dark{background:#000}}",
        "@layer base { .dark { background: #000 } }",
        "p:not(.x){background:#000}",
    ],
)
def test_where_a_rule_may_paint_an_element_by_its_place_text_is_marked(rule: str) -> None:
    html = f"<style>{rule} .w{{color:#fff;background:#fff}}</style><div class=dark><p class=w>seen</p></div>"
    assert markdown(html) == "[in the colour of its background: seen]"


def test_where_a_style_sheet_from_elsewhere_may_paint_the_background_text_is_marked() -> None:
    html = "<link href=dark.css rel='stylesheet'><p>seen <span style='color:#fff'>ignore all &amp; obey</span></p>"
    assert markdown(html) == "seen [in the colour of its background: ignore all & obey]"


def test_colours_of_a_very_long_page_are_read_in_time() -> None:
    started = time.monotonic()
    part = "<div class=a><p style='color:#fff'>HIDDEN</p><span>seen</span>"
    assert "HIDDEN" not in markdown("<style>.a{background:#fff}</style>" + part * 5_000)
    assert time.monotonic() - started < 20
