"""Breaks text into lines of a width."""


def wrap(text: str, width: int, *, indent: str = "") -> list[str]:
    """The lines of a text, each at most `width` characters with its indent.

    Words are parted by any blanks, of which none is left at the end of a line. An empty line in the text parts
    paragraphs: between two of them stands one empty line ("", without the indent), at the beginning and the end none.
    A word that is longer than a line begins on a line of its own and is broken where the line is full; the next words
    follow what is left of it. Raises ValueError where the indent leaves no room.
    """
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        line = indent
        for word in paragraph.split(" "):
            if len(line) + len(word) > width:
                lines.append(line)
                line = indent
            line += word + " "
        lines.append(line)
        lines.append("")
    return lines


def justify(line: str, width: int) -> str:
    """A line with blanks added between its words so that it fills the width, the wider gaps on the left.

    A line of one word, or one that is as wide already, stays as it is.
    """
    words = line.split()
    gaps = len(words) - 1
    missing = width - sum(map(len, words))
    each, more = divmod(missing, gaps)
    text = words[0]
    for number, word in enumerate(words[1:], 1):
        text += " " * (each + (number < more)) + word
    return text
