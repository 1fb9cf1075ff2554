"""Bytes to events and lines, and JSON as servers write it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.llm.errors import ConnectionFailed, ServerError, retry_after_seconds
from agentcli.llm.http import MAX_EVENT_BYTES
from agentcli.llm.messages import decode_json, encode_json, without_lone_surrogates
from agentcli.llm.streaming import LineParser, SseParser
from tests.properties import examples
from tests.rows import each_row

SHARED = Path(__file__).parents[3].parent / "shared/data/stream.jsonl.gz"
quick = examples(150)


def parse(*chunks: bytes) -> list[str | bytes]:
    parser = SseParser()
    return [data for chunk in chunks for data in parser.feed(chunk)]


def bytes_of(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


# Server-sent events


@each_row(
    "body, events",
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data: a\ndata:\ndata: b\n\n", ["a\n\nb"]),
        (b"data\n\n", []),
        (b"event: x\nid: 7\ndata: a\nretry: 9\n\ndata: b\n\n", ["a", "b"]),
        (b"event: x\n\n", []),
        (b": keep-alive\n\n: OPENROUTER PROCESSING\n\ndata: a\n\n", ["a"]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", ["a", "b", "c"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),
        ("data: a\u2028b\u0085c\x0bd\n\n".encode(), ["a\u2028b\u0085c\x0bd"]),
        (b"Data: a\n\n data: b\n\ndata : c\n\n", []),
        (b"data: a\n\ndata: never closed\n", ["a"]),
        (b"\n\n\n", []),
        (b"data: \xff\n\n", ["\ufffd"]),
    ],
)
def test_an_event_stream_is_read_as_the_standard_says(body: bytes, events: list[str]) -> None:
    assert parse(body) == events
    assert parse(*bytes_of(body)) == events


stream_bytes = st.lists(
    st.sampled_from(
        [b"data: ", b"data:", b"event: x", b"id: 1", b"\n", b"\r", b"\r\n", b"\n\n", b": c", b"\xef\xbb\xbf"]
    )
    | st.text(max_size=4).map(lambda text: text.encode(errors="replace"))
    | st.binary(max_size=3),
    max_size=24,
).map(b"".join)


@quick
@given(stream_bytes, st.data())
@example(b"\xef\xbb\xbfdata: a\r\n\r\ndata: b\n\n", None)
def test_an_event_stream_means_the_same_however_it_is_cut(body: bytes, data: Any) -> None:
    places = [] if data is None else data.draw(st.lists(st.integers(0, len(body)), max_size=6).map(sorted))
    edges = [0, *places, len(body)]
    chunks = [body[start:end] for start, end in itertools.pairwise(edges)]
    assert parse(*chunks) == parse(*bytes_of(body)) == parse(body)


@pytest.mark.slow
@quick
@given(stream_bytes, st.data())
def test_an_end_without_an_empty_line_means_the_same_however_it_is_cut(body: bytes, data: Any) -> None:
    edges = [0, *data.draw(st.lists(st.integers(0, len(body)), max_size=6).map(sorted)), len(body)]

    def ended(chunks: list[bytes]) -> Any:
        parser = SseParser()
        events = [event for chunk in chunks for event in parser.feed(chunk)]
        try:
            return events + parser.close()
        except ConnectionFailed as failed:
            return events, str(failed)

    assert ended([body]) == ended(bytes_of(body)) == ended([body[a:b] for a, b in itertools.pairwise(edges)])


@pytest.mark.parametrize(
    ("rest", "events"),
    [
        (b'data: {"a":1}', ['{"a":1}']),
        (b'event: x\ndata: {"a":1}\r', ['{"a":1}']),
        (b'data: {"a":\ndata: 1}\n', ['{"a":\n1}']),
        (b"data: [DONE]", ["[DONE]"]),
        (b": keep-alive", []),
        (b"event: x\nid: 1\n", []),
        (b"", []),
    ],
)
def test_the_body_s_end_closes_a_whole_event(rest: bytes, events: list[str]) -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\n" + rest) == ["a"]
    assert parser.close() == events
    assert parser.close() == []


@pytest.mark.parametrize("rest", [b'data: {"a"', b"data: [DON"])
def test_the_body_s_end_inside_an_event_is_a_broken_connection(rest: bytes) -> None:
    parser = SseParser()
    parser.feed(b"data: a\n\n" + rest)
    with pytest.raises(ConnectionFailed):
        parser.close()


@pytest.mark.parametrize("make", [SseParser, LineParser])
def test_endless_constructs_are_given_up_in_linear_time(make: Any) -> None:
    parser = make()
    parser.feed(b"data: ")
    for _ in range(MAX_EVENT_BYTES // 256 - 1):
        parser.feed(b"x" * 256)
    with pytest.raises(ServerError, match="16 MB") as failed:
        parser.feed(b"x" * 256)
    assert not failed.value.is_retryable


def test_long_events_and_long_silence_take_linear_time() -> None:
    parser = SseParser()
    long = b"data: " + b"x" * 2_000_000 + b"\n\n"
    events = [event for at in range(0, len(long), 65_536) for event in parser.feed(long[at : at + 65_536])]
    assert [len(data) for data in events] == [2_000_000]
    assert SseParser().feed(b": x\n" * 200_000) == []


@quick
@given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5)), max_size=5), st.data())
def test_lines_mean_the_same_however_they_are_cut(rows: list[dict[str, str]], data: Any) -> None:
    body = b"".join(
        json.dumps(row, ensure_ascii=data.draw(st.booleans())).encode(errors="replace") + b"\r\n" for row in rows
    )
    size = data.draw(st.integers(1, 20))
    lines = LineParser()
    cut = [line for at in range(0, len(body), size) for line in lines.feed(body[at : at + size])]
    assert cut == LineParser().feed(body)
    assert lines.close() == []
    assert len(cut) == len(rows)


def test_lines_may_begin_with_a_byte_order_mark() -> None:
    body = b'\xef\xbb\xbf{"a":1}\n{"b":2}\n'
    for chunks in ([body], bytes_of(body)):
        lines = LineParser()
        assert [line for chunk in chunks for line in lines.feed(chunk)] == [b'{"a":1}', b'{"b":2}']


def test_half_a_last_line_is_a_broken_connection() -> None:
    lines = LineParser()
    lines.feed(b'{"a":1}\n{"b"')
    with pytest.raises(ConnectionFailed):
        lines.close()


def test_a_last_line_without_an_end_is_given_on_close() -> None:
    lines = LineParser()
    assert lines.feed(b'{"a":1}\n\n{"b"') == [b'{"a":1}']
    assert lines.feed(b":2}") == []
    assert (lines.close(), lines.close()) == ([b'{"b":2}'], [])


# JSON


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", "[Infinity]", '{"a":1}{"b":2}', "{'a':1}", "[1,]", "[" * 100_000, "1e999"]
)
def test_text_other_than_one_json_value_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        decode_json(text)


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    assert decode_json('{"a":"x\\ud83d y","\\udc00":1}') == {"a": "x\ufffd y", "\ufffd": 1}
    assert decode_json(b'["\\ud83d\\ude00"]') == ["😀"]


def test_a_surrogate_before_deep_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested"):
        decode_json('["\\ud800",' + "[" * 100_000)


def test_text_that_utf8_cannot_hold_is_sent_as_a_replacement_character() -> None:
    assert encode_json({"a": "x\udcff"}) == '{"a":"x\ufffd"}'.encode()
    assert encode_json({"a": "é😀"}) == '{"a":"é😀"}'.encode()
    assert without_lone_surrogates(["\ud800"]) == ["\ufffd"]


@quick
@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_json_comes_back_as_it_was(value: Any) -> None:
    assert decode_json(encode_json(value)) == value


def test_retry_after_is_read_in_each_of_its_forms() -> None:
    assert retry_after_seconds({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after_seconds({"retry-after": "1.5"}) == 1.5
    assert retry_after_seconds({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert retry_after_seconds({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}) == 0.0
    assert retry_after_seconds({"retry-after": " 7 "}) == 7
    nonsense = ("soon", "-5", "²", "inf", "1e999", "9" * 400, "1e17", "100000000000000")
    for value in (*nonsense, "Wed, 21 Oct 9999 07:28:00 GMT", "Wed, 21 Oct 99999"):
        assert retry_after_seconds({"retry-after": value}) is None
    for headers in ({}, {"retry-after-ms": "x"}, {"retry-after-ms": "nan"}):
        assert retry_after_seconds(headers) is None


# The shared rows


def shared_rows() -> list[dict[str, Any]]:
    if not SHARED.exists():
        return []
    return [json.loads(line) for line in gzip.decompress(SHARED.read_bytes()).splitlines()]


needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared rows lie outside the project")


@needs_shared
def test_the_shared_streams_give_the_expected_events() -> None:
    rows = [row for row in shared_rows() if isinstance(row["expected"], list)]
    assert rows
    for row in rows:
        body = row["input"].encode()
        chunks = [body]
        if sizes := row.get("chunks"):
            edges = [0]
            for size in sizes:
                edges.append(edges[-1] + size)
            chunks = [body[start:end] for start, end in zip(edges, [*edges[1:], len(body)], strict=True)]
        assert parse(*chunks) == [data for event in row["expected"] if (data := event["data"].strip())], row["why"]


@needs_shared
def test_the_shared_json_texts_parse_or_fail_as_expected() -> None:
    rows = [row for row in shared_rows() if "input_b64" in row]
    assert rows
    for row in rows:
        text = base64.b64decode(row["input_b64"])
        try:
            value = decode_json(text)
        except ValueError:
            assert row["expected"] != "parses", row["why"]
        else:
            assert row["expected"] != "error", row["why"]
            encode_json(value)


@needs_shared
def test_the_shared_bad_streams_end_in_a_provider_error_or_a_sound_message() -> None:
    from tests.conformance.backends import OVER_HTTP
    from tests.conformance.reading import hear
    from tests.conformance.servers import Reply

    rows = [row for row in shared_rows() if isinstance(row["expected"], str) and "input" in row]
    rows += [row for row in shared_rows() if "error" in row]

    async def run() -> None:
        backend = OVER_HTTP[0]
        async with backend.playing(*(Reply(row["input"].encode()) for row in rows)) as stage:
            for row in rows:
                heard = await hear(stage.provider)
                assert heard.error is not None, row["why"]
                assert heard.error.partial is not None, row["why"]
                assert heard.error.partial.tool_uses == (), row["why"]

    assert rows
    asyncio.run(run())
