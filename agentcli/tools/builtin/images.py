"""Decodes, scales and re-encodes images that are too large for a model, or that look broken."""

import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

from agentcli.errors import ToolError
from agentcli.llm.media import MAX_EDGE, MAX_IMAGE_BYTES

# Encodings from the best to the smallest: the longest edge in pixels, the format, the format's settings.
_ENCODINGS: tuple[tuple[int, str, dict[str, int | bool]], ...] = (
    (MAX_EDGE, "PNG", {"optimize": False}),
    (MAX_EDGE, "JPEG", {"quality": 85}),
    (MAX_EDGE, "JPEG", {"quality": 60}),
    (MAX_EDGE // 2, "JPEG", {"quality": 60}),
)

warnings.filterwarnings("ignore", module=r"PIL\.")  # its warnings would appear in the terminal


def fit_image(content: bytes, shown: str) -> tuple[bytes, str, str]:
    """Return an image that fits (an animation's first frame), its media type, and its sizes. Raises `ToolError`."""
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "GIF", "WEBP")) as image:
            size, was_jpeg, is_animated = image.size, image.format == "JPEG", getattr(image, "is_animated", False)
            if size[0] * size[1] > 80_000_000:  # 320 MB of memory, which even a tiny file can demand
                raise Image.DecompressionBombError(f"{size[0]:,} x {size[1]:,}")
            image.draft("RGB", (MAX_EDGE, MAX_EDGE))  # a JPEG is then decoded at a fraction of its size
            picture = ImageOps.exif_transpose(image)  # rotated as its EXIF data says
            has_alpha = picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info
            picture = picture.convert("RGBA" if has_alpha else "RGB")
    except Image.DecompressionBombError as error:
        message = f"{shown} has too many pixels to be decoded ({error}): make it smaller with bash first."
        raise ToolError(message, kind="validation_error") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        # Pillow's message about an unknown format only names the object that holds the bytes.
        reason = "no format that can be read" if isinstance(error, UnidentifiedImageError) else error
        message = f"{shown} is a broken image ({reason}): look at it with bash (file, xxd)."
        raise ToolError(message, kind="validation_error") from error
    picture.thumbnail((MAX_EDGE, MAX_EDGE), Image.Resampling.LANCZOS)
    encoded, name = _encode(picture, was_jpeg=was_jpeg)
    about = f"{size[0]} x {size[1]} pixels"
    about += f", shown as {picture.width} x {picture.height}" if picture.size != size else ""
    return encoded, f"image/{name.lower()}", about + (", first frame of an animation" if is_animated else "")


def _encode(picture: Image.Image, *, was_jpeg: bool) -> tuple[bytes, str]:
    """Return the image in the first form that is small enough, else in the smallest one; and the format's name."""
    for edge, name, settings in _ENCODINGS[1:] if was_jpeg else _ENCODINGS:  # a photo as PNG is large
        smaller = picture.copy()
        smaller.thumbnail((edge, edge), Image.Resampling.LANCZOS)
        if name == "JPEG" and smaller.mode == "RGBA":  # JPEG has no transparency
            ground = Image.new("RGB", smaller.size, "white")
            ground.paste(smaller, mask=smaller.getchannel("A"))
            smaller = ground
        output = io.BytesIO()
        smaller.save(output, name, **settings)
        if output.tell() <= MAX_IMAGE_BYTES:
            break
    return output.getvalue(), name
