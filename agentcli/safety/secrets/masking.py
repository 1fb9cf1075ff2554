"""Masks secrets in text: replaces each by a marker that names its kind, and leaves everything else as it is.

A `Masker` also knows secrets by their value. A `StreamMask` is fed a text in pieces; its output equals that of `mask`
for the whole text, except that it does not recognize the end of a private key whose beginning is missing.
"""

import base64
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from urllib.parse import quote

from ahocorasick_rs import BytesAhoCorasick, Implementation

from agentcli.patterns import lazy_pattern
from agentcli.safety.secrets.private_keys import MAX_MARK_CHARS, KeyStart, find_key, find_key_ends, follow_key
from agentcli.safety.secrets.rules import MAX_CONTEXT_CHARS, MAX_MATCH_CHARS, Secret, bytes_for_search, find_tokens

PRIVATE_KEY = "private-key"
_MIN_KNOWN_CHARS = 8  # shorter known values are not searched for, because they occur in ordinary words
_MIN_MIXED_CHARS = 6  # the minimum for a value with both letters and digits
_MAX_DFA_CHARS = 20_000  # of all known values; for more, a DFA would take hundreds of megabytes

# Terminal codes (ECMA-48, 5.4): raw, and as source code and `cat -v` spell them.
_CODE = lazy_pattern(r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e|\^\[)\[[0-9;:?]{0,40}[ -/]?[@-~]|\x1b\([0-9A-Z]")
_SIGNS = ("\x1b", r"\u001", r"\x1", r"\033", r"\e[", "^[[")  # six plain searches are ten times faster than `_CODE`
# A possible beginning of a code, at the end of a text:
_BEGUN = lazy_pattern(r"(?:(?:\x1b|\\(?:[ux0e][0-9A-Fa-f]{0,4})?|\^\[?)(?:\[[0-9;:?]{0,40}[ -/]?)?|\x1b\()\Z")
_MAX_BEGUN_CHARS = 64
_LONG_BASE64 = lazy_pattern(r"[0-9A-Za-z+/=]{60,}")


class Masker:
    """Masks secrets of known formats, and `known_values` anywhere, also encoded as base64, hexadecimal or in URLs."""

    def __init__(self, known_values: Iterable[str] = ()) -> None:
        values = {value for value in known_values if is_long_enough(value)}
        # The known values in every encoding in which they may appear.
        self._forms = sorted({form for value in values for form in _written_forms(value) if is_long_enough(form)})
        self._with_spaces = [form for form in self._forms if re.search(r"\s", form)]
        raw = [bytes_for_search(form) for form in self._forms]
        kind = Implementation.DFA if sum(map(len, raw)) <= _MAX_DFA_CHARS else Implementation.ContiguousNFA
        self._search = BytesAhoCorasick(raw, implementation=kind) if raw else None

    def mask(self, text: str) -> str:
        return StreamMask(self, text).close()  # each secret becomes `[masked: kind]`

    def secrets(self, text: str) -> list[Secret]:
        """Return the secrets in a text, in order. Overlapping secrets become one, with the rule of the first."""
        return StreamMask(self, text).secrets()

    def stream(self) -> "StreamMask":
        return StreamMask(self)

    def find(self, text: str) -> list[Secret]:
        """Return the known values and tokens in a text, but not private keys; in no order, and perhaps overlapping."""
        raw = bytes_for_search(text)
        matches = self._search.find_matches_as_indexes(raw, overlapping=True) if self._search is not None else ()
        return find_tokens(text, raw) + [
            Secret(start, end, "known-secret")
            for index, start, end in matches
            if text.startswith(self._forms[index], start)  # `raw` has one byte for several different characters
        ]

    def certain_end(self, text: str) -> int:
        """Return the start of the last word: text that follows cannot change which secrets are found before it."""
        end = max(max(map(text.rfind, " \n\t\r")) + 1, len(text) - MAX_MATCH_CHARS)
        for form in self._with_spaces:  # the text may end in the middle of a value of several words
            sizes = range(min(len(form) - 1, len(text)), 0, -1)
            begun = next((size for size in sizes if text.endswith(form[:size])), 0)
            end = min(end, len(text) - begun)
        return end


def is_long_enough(value: str) -> bool:
    is_mixed = re.search(r"\d", value) is not None and re.search(r"[A-Za-z]", value) is not None
    return len(value) >= (_MIN_MIXED_CHARS if is_mixed else _MIN_KNOWN_CHARS)


def _written_forms(value: str) -> Iterable[str]:
    from html import escape  # costs a millisecond, wasted if there are no known values

    raw = value.encode("utf-8", "replace")
    yield from (value, json.dumps(value)[1:-1], quote(value, safe=""), quote(value), raw.hex(), raw.hex().upper())
    yield escape(value)
    if _LONG_BASE64.fullmatch(value):  # a line of a private key, which is base64 already
        return
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode().rstrip("=")
        # In a longer text, the value begins at one of three offsets. Letters that share bits with others are left out.
        for bytes_before, letters_before in ((0, 0), (1, 2), (2, 3)):
            encoded = encode(bytes(bytes_before) + raw).decode().rstrip("=")
            shares_last_letter = (bytes_before + len(raw)) % 3 != 0
            yield encoded[letters_before : -1 if shares_last_letter else None]


class PlainText:
    """A text without terminal codes, because in `\\x1b[32mtoken` the `m` does not belong to the word.

    Unless the text `is_complete`, what may be the beginning of a code at its end is left out.
    """

    def __init__(self, written: str, *, is_complete: bool) -> None:
        self.text = written
        if not is_complete and (begun := _BEGUN.search(written, max(0, len(written) - _MAX_BEGUN_CHARS))):
            self.text = written[: begun.start()]
        codes = [*_CODE.finditer(self.text)] if any(sign in self.text for sign in _SIGNS) else []
        self._code_chars = [0, *accumulate(len(code[0]) for code in codes)]  # at [n], those of the first n codes
        # For each code, the position in the plain text of what follows it.
        self._positions = [code.start() - self._code_chars[index] for index, code in enumerate(codes)]
        self.text = _CODE.sub("", self.text) if codes else self.text

    def before_codes(self, position: int) -> int:
        """Return where the text as written continues at a position of the plain text: before any codes there."""
        return position + self._code_chars[bisect_left(self._positions, position)]

    def behind_codes(self, position: int) -> int:
        return position + self._code_chars[bisect_right(self._positions, position)]


class StreamMask:
    """Masks a text that comes in pieces. It holds back the last word, and anything that may begin a private key.

    A complete text is passed as `whole`; nothing may be fed to that mask.
    """

    def __init__(self, masker: Masker, whole: str = "") -> None:
        self._masker = masker
        # The text as written that is not decided yet, and a little text before it, because rules look back.
        self._written = whole
        self._plain = PlainText(whole, is_complete=bool(whole))  # all positions below are positions in it
        self._key_ends = find_key_ends(self._plain.text)  # of keys whose beginning is missing; only in a `whole`
        self._done = 0  # all text before this position was returned, or replaced by a marker
        self._masked = 0  # the end of the newest secret; a secret that overlaps it extends it
        self._searched = 0  # private keys that begin before this position have been found
        self._key: KeyStart | None = None  # a key whose beginning is masked already and whose end has not come yet

    def feed(self, text: str) -> str:
        """Take more text and return the masked text that can no longer change."""
        self._written += text
        return self._mask_certain(is_complete=False)

    def close(self) -> str:
        return self._mask_certain(is_complete=True)

    def secrets(self) -> list[Secret]:
        """Return the secrets of a `whole` text, by their positions in the text as written."""
        plain, found = self._plain, self._certain_secrets(is_complete=True)
        return [Secret(plain.behind_codes(one.start), plain.before_codes(one.end), one.rule) for one in found]

    def _mask_certain(self, *, is_complete: bool) -> str:
        """Return, masked, the text behind `_done` that can no longer change; `_certain_secrets` moves `_done` on."""
        plain = self._plain = PlainText(self._written, is_complete=is_complete)
        pieces: list[str] = []
        copied_end = plain.before_codes(self._done)  # what was written before it was returned, or is in `pieces`
        for secret in self._certain_secrets(is_complete=is_complete):
            start, end = plain.behind_codes(secret.start), plain.before_codes(secret.end)
            last_code = _CODE.findall(self._written[start:end])[-1:]  # it sets the style of the text behind the secret
            mark = f"[masked: {secret.rule}]" if secret.rule else ""
            pieces += (self._written[copied_end:start], *last_code, mark)
            copied_end = end
        pieces.append(self._written[copied_end : None if is_complete else plain.before_codes(self._done)])
        self._forget(self._done - 2 * MAX_CONTEXT_CHARS)  # rules look back at most `MAX_CONTEXT_CHARS`
        return "".join(pieces)

    def _certain_secrets(self, *, is_complete: bool) -> list[Secret]:
        """Return the secrets that can no longer change. One without a rule is the rest of one returned before."""
        certain_end = len(self._plain.text) if is_complete else self._masker.certain_end(self._plain.text)
        keys, certain_end = self._find_keys(certain_end, is_complete=is_complete)
        certain: list[Secret] = []
        for secret in sorted(self._masker.find(self._plain.text) + keys, key=lambda one: (one.start, -one.end)):
            if secret.start >= certain_end:
                break
            if secret.end <= max(self._masked, self._done):  # inside a secret found already, or in returned text
                continue
            if secret.start >= self._masked:
                certain.append(secret)
            elif certain:  # it overlaps the newest secret, and extends it
                certain[-1] = certain[-1]._replace(end=secret.end)
            else:  # the newest secret was returned before
                certain.append(Secret(self._done, secret.end, ""))
            self._masked = secret.end
        self._done = max(certain_end, self._masked)
        return certain

    def _find_keys(self, certain_end: int, *, is_complete: bool) -> tuple[list[Secret], int]:
        """Return the private keys found so far, and the new `certain_end`: secrets that begin before it are certain.

        `certain_end` moves back to the start of text that may become a key, forward to the end of a key, and to the end
        of the known part of a key that may continue.
        """
        keys = [Secret(*span, PRIVATE_KEY) for span in self._key_ends]
        text, key = self._plain.text, self._key
        self._key = None
        if key is None:
            key = find_key(text, self._searched, is_complete=is_complete)
        else:  # its beginning is masked already, so it is certain
            certain_end = max(certain_end, key.start + 1)
        while key is not None:
            if key.known_end is None or key.start >= certain_end:  # it may be no key: wait for more text
                self._searched = key.start
                return keys, min(certain_end, key.start)
            end, may_continue = follow_key(text, key.known_end, key.frame, is_complete=is_complete)
            keys.append(Secret(key.start, end, PRIVATE_KEY))
            if may_continue:
                # The rest of the key starts inside the masked text, so that it extends this secret and gets no marker.
                self._key = KeyStart(end - 1, end, key.frame)
                return keys, end
            certain_end, self._searched = max(certain_end, end), end
            key = find_key(text, end, is_complete=is_complete)
        # The text may end in the middle of the line that begins a key.
        self._searched = max(self._searched, len(text) - MAX_MARK_CHARS)
        return keys, certain_end

    def _forget(self, char_count: int) -> None:
        """Drop characters at the beginning of the plain text, so that a long stream does not fill the memory."""
        if char_count <= 0:
            return
        self._written = self._written[self._plain.before_codes(char_count) :]  # so all positions in it move
        self._done -= char_count
        self._masked = max(0, self._masked - char_count)
        self._searched = max(0, self._searched - char_count)
        if self._key is not None and self._key.known_end is not None:
            start, known_end = self._key.start - char_count, self._key.known_end - char_count
            self._key = self._key._replace(start=start, known_end=known_end)


mask, find_secrets = Masker().mask, Masker().secrets  # these find only known formats, not known values
