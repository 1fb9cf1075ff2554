"""Arithmetic with amounts in cents."""

from invoicing.errors import InvoiceError


def share(amount: int, part: int, whole: int) -> int:
    """`part / whole` of an amount, rounded half up to a whole cent."""
    if whole <= 0 or part < 0:
        raise InvoiceError(f"{part}/{whole} is no share.")
    return (2 * amount * part + whole) // (2 * whole)


def shown(amount: int) -> str:
    """An amount as a person reads it: 123456 is "1,234.56"."""
    sign = "-" if amount < 0 else ""
    units, cents = divmod(abs(amount), 100)
    return f"{sign}{units:,}.{cents:02}"
