"""The lines of an invoice."""

from dataclasses import dataclass

from invoicing.errors import InvoiceError


@dataclass(frozen=True)
class Line:
    text: str
    count: int
    price_cents: int


@dataclass(frozen=True)
class Invoice:
    number: str
    lines: tuple[Line, ...]
    tax_permille: int = 190


def parse_line(text: str) -> Line:
    """Read `COUNT x TEXT @ PRICE`, such as "3 x Notebook A5 @ 4.20"."""
    count, _, rest = text.partition(" x ")
    name, _, price = rest.rpartition(" @ ")
    units, _, cents = price.strip().partition(".")
    if not (count.strip().isdecimal() and name and units.isdecimal() and cents.isdecimal() and len(cents) == 2):
        raise InvoiceError(f"{text!r} is no line: write COUNT x TEXT @ PRICE.")
    return Line(name.strip(), int(count), 100 * int(units) + int(cents))
