"""Reports on carts."""

import shop.tax as taxes


def recalc(cart):
    """The lines of a report; `recalc` is what the accountants call it."""
    return [f"{net} + {taxes.calc(net, kind)}" for net, kind in cart.items]
