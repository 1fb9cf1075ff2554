"""Reads the colours of CSS (CSS Color 4): names, numbers, and the two an element has."""

from __future__ import annotations

import colorsys
import re
from typing import Literal

from PIL.ImageColor import colormap, getrgb

Colour = tuple[int, int, int]
Unknown = Literal["unknown"]  # a picture, a gradient, a variable: nobody can tell what it looks like here

_NUMBER = r"[+-]?\d{0,9}(?:\.\d{0,9})?"
_FUNCTION = re.compile(
    rf"(rgb|hsl)a?\(\s*({_NUMBER})(%|deg)?[\s,]+({_NUMBER})(%?)[\s,]+({_NUMBER})(%?)\s*(?:[,/]\s*({_NUMBER})(%?)\s*)?\)"
)
_HEX = re.compile(r"#(?:[0-9a-f]{8}|[0-9a-f]{6}|[0-9a-f]{3,4})")
_COVERS = 0.5  # of a background's opacity, from which on what is behind it is not seen
_NEAR = 24  # of 255, in each of red, green and blue: a reader sees no letters then


def colour_of(value: str) -> Colour | None:
    """A colour in lower case, as CSS writes it, without its transparency; None for what is none, or not known here."""
    value = value.strip()
    if value in colormap:
        return getrgb(value)[:3]
    if _HEX.fullmatch(value):
        digits = value[1:]
        return _from_hex("".join(2 * digit for digit in digits[:3]) if len(digits) < 6 else digits[:6])
    if found := _FUNCTION.fullmatch(value):
        kind, first, first_unit, *others = found.groups()[:7]
        try:
            numbers = [float(one) for one in (first, others[0], others[2])]
        except ValueError:
            return None
        if kind == "hsl":
            hue, saturation, light = numbers[0] % 360 / 360, min(1, numbers[1] / 100), min(1, numbers[2] / 100)
            red, green, blue = (255 * part for part in colorsys.hls_to_rgb(hue, light, saturation))
        else:
            units = (first_unit, others[1], others[3])
            red, green, blue = (n * 2.55 if unit == "%" else n for n, unit in zip(numbers, units, strict=True))
        return _byte(red), _byte(green), _byte(blue)
    return None


def background_of(declared: dict[str, str]) -> Colour | Unknown | None:
    """The background that declarations give an element; None where what is behind it stays."""
    value = declared.get("background-color") or declared.get("background", "")
    image = f"{declared.get('background', '')} {declared.get('background-image', '')}"
    if "url(" in image or "gradient(" in image or "var(" in value:
        return "unknown"
    parts = re.findall(r"[a-z-]+\([^)]*\)|[^\s/]+", value)
    return next(filter(None, (colour_of(part) for part in parts if _opacity_of(part) >= _COVERS)), None)


def are_alike(one: Colour, other: Colour) -> bool:
    return all(abs(a - b) <= _NEAR for a, b in zip(one, other, strict=True))


def _opacity_of(value: str) -> float:
    if _HEX.fullmatch(value) and len(value) in (5, 9):
        return int((2 * value[4:])[:2] if len(value) == 5 else value[7:], 16) / 255
    found = _FUNCTION.fullmatch(value)
    try:
        return float(found[8]) / (100 if found[9] else 1) if found and found[8] else 1.0
    except ValueError:
        return 1.0


def _from_hex(digits: str) -> Colour:
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)


def _byte(number: float) -> int:
    return max(0, min(255, round(number)))
