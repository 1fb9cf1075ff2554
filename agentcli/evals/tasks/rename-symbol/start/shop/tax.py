"""Taxes."""

RATES = {"food": 7, "books": 7, "other": 19}


def calc(net_cents, kind="other"):
    """The tax on a net amount, in cents, rounded half up."""
    return (net_cents * RATES[kind] + 50) // 100


def calc_all(items):
    """The tax on (net_cents, kind) pairs."""
    return sum(calc(net, kind) for net, kind in items)
