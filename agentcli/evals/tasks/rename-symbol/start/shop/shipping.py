"""Shipping."""


def calc(pieces):
    """The price of shipping in cents: 5.00, and 0.50 for each piece after the first."""
    return 500 + 50 * max(pieces - 1, 0) if pieces else 0
