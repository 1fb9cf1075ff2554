"""What an image or document is by its first bytes, how large an image is, and whether all of it is there.

Only headers are looked at: nothing is decoded.
"""

from __future__ import annotations

LARGEST_IMAGE = 5 * 1024 * 1024 // 4 * 3  # bytes a provider takes, which are 5 MB as base64
LONGEST_EDGE = 1_568  # pixels; larger images are made smaller by the provider

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def media_type_of(head: bytes) -> str:
    """The media type of a PNG, JPEG, GIF or WebP image or a PDF; empty for anything else."""
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MAGIC if head.startswith(magic)), "")


def dimensions_of(image: bytes) -> tuple[int, int] | None:
    """Width and height in pixels; None where the header does not say, or the image does not end as it should."""
    match media_type_of(image):
        case "image/png":
            return _png_dimensions(image)
        case "image/jpeg":
            return _jpeg_dimensions(image)
        case "image/gif":
            is_whole = len(image) > 13 and image.endswith(b";")
            return (int.from_bytes(image[6:8], "little"), int.from_bytes(image[8:10], "little")) if is_whole else None
        case "image/webp":
            return _webp_dimensions(image)
    return None


def _png_dimensions(image: bytes) -> tuple[int, int] | None:
    """From the first chunk, when the chunks lead to the last one: PNG specification, 5.3 and 11.2.1."""
    if image[12:16] != b"IHDR":
        return None
    position = 8
    while (kind := image[position + 4 : position + 8]) != b"IEND":
        if len(kind) < 4:
            return None
        position += 12 + int.from_bytes(image[position : position + 4])
    return int.from_bytes(image[16:20]), int.from_bytes(image[20:24])


def _webp_dimensions(image: bytes) -> tuple[int, int] | None:
    """Of a lossy, lossless or extended image: RFC 9649, sections 2.4 to 2.7."""
    if len(image) < 30 or len(image) < 8 + int.from_bytes(image[4:8], "little"):
        return None
    match image[12:16]:
        case b"VP8 ":
            return int.from_bytes(image[26:28], "little") & 0x3FFF, int.from_bytes(image[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(image[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(image[24:27], "little") + 1, int.from_bytes(image[27:30], "little") + 1
    return None


def _jpeg_dimensions(image: bytes) -> tuple[int, int] | None:
    """From the frame header, behind any number of segments, when the end is marked: ITU-T T.81, B.1.1.4 and B.2."""
    position = 2
    while image[position : position + 1] == b"\xff" and position + 9 <= len(image):
        marker = image[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
        elif 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            height, width = int.from_bytes(image[position + 5 : position + 7]), image[position + 7 : position + 9]
            return (int.from_bytes(width), height) if image.rfind(b"\xff\xd9") > position else None
        else:
            position += 2 + int.from_bytes(image[position + 2 : position + 4])
    return None
