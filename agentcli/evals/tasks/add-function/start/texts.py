"""Small helpers for texts of the terminal."""


def indent(text, prefix="    "):
    """Put a prefix before each line that is not empty."""
    return "\n".join(f"{prefix}{line}" if line else line for line in text.split("\n"))


def one_line(text):
    """Join the words of a text with single spaces."""
    return " ".join(text.split())
