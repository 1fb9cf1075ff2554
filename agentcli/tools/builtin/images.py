"""Images that are too large for a model, or look broken: decoded, scaled and encoded anew."""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

from agentcli.errors import ToolError
from agentcli.llm.media import MAX_EDGE, MAX_IMAGE_BYTES

MOST_PIXELS = 80_000_000  # 320 MB of memory; a picture of few bytes can claim thousands of times as many

# How to write the picture, from the best to the smallest: its longest edge, the format, the format's settings.
_TRIES: tuple[tuple[int, str, dict[str, int | bool]], ...] = (
    (MAX_EDGE, "PNG", {"optimize": False}),
    (MAX_EDGE, "JPEG", {"quality": 85}),
    (MAX_EDGE, "JPEG", {"quality": 60}),
    (MAX_EDGE // 2, "JPEG", {"quality": 60}),
)

warnings.filterwarnings("ignore", module=r"PIL\.")  # what it says of odd files would land in the terminal's picture


def fitted(content: bytes, shown: str) -> tuple[bytes, str, str]:
    """The image within the limits, its media type, and what was done with it. Of an animation the first frame is taken.

    Raises `ToolError` for a broken image, and for one with too many pixels to be decoded.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "GIF", "WEBP")) as image:
            _require_few_pixels(image.size, shown)
            was_jpeg = image.format == "JPEG"
            before, is_animated = image.size, getattr(image, "is_animated", False)
            image.draft("RGB", (MAX_EDGE, MAX_EDGE))  # a JPEG can be decoded at half its size and less
            picture = _plain(ImageOps.exif_transpose(image))
    except Image.DecompressionBombError as error:
        raise _too_many(shown, "") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        # What Pillow says of bytes it does not know names the object that holds them.
        reason = "no format that can be read" if isinstance(error, UnidentifiedImageError) else error
        raise ToolError(
            f"{shown} is a broken image ({reason}): look at it with bash (file, xxd).", kind="validation_error"
        ) from error
    picture.thumbnail((MAX_EDGE, MAX_EDGE), Image.Resampling.LANCZOS)
    encoded, name = _encoded(picture, was_jpeg=was_jpeg)
    about = f"{before[0]} x {before[1]} pixels"
    if picture.size != before:
        about += f", shown as {picture.width} x {picture.height}"
    return encoded, f"image/{name.lower()}", about + (", first frame of an animation" if is_animated else "")


def _plain(image: Image.Image) -> Image.Image:
    """Decoded, in a mode that can be scaled well and written in any format."""
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return image.convert("RGBA" if has_alpha else "RGB")


def _encoded(picture: Image.Image, *, was_jpeg: bool) -> tuple[bytes, str]:
    """The picture as a file no larger than a model takes, and the name of its format."""
    for edge, name, settings in _TRIES[1:] if was_jpeg else _TRIES:
        smaller = picture.copy()
        smaller.thumbnail((edge, edge), Image.Resampling.LANCZOS)
        output = io.BytesIO()
        (smaller if name == "PNG" else _on_white(smaller)).save(output, name, **settings)
        if output.tell() <= MAX_IMAGE_BYTES:
            break
    return output.getvalue(), name


def _on_white(picture: Image.Image) -> Image.Image:
    """JPEG knows no transparency."""
    if picture.mode == "RGB":
        return picture
    ground = Image.new("RGB", picture.size, "white")
    ground.paste(picture, mask=picture.getchannel("A"))
    return ground


def _require_few_pixels(size: tuple[int, int], shown: str) -> None:
    if size[0] * size[1] > MOST_PIXELS:
        raise _too_many(shown, f" ({size[0]:,} x {size[1]:,})")


def _too_many(shown: str, size: str) -> ToolError:
    return ToolError(
        f"{shown} has too many pixels to be decoded{size}: make it smaller with bash first.", kind="validation_error"
    )
