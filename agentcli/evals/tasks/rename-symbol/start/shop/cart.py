"""Shopping carts."""

from shop import shipping, tax
from shop.tax import calc


class Cart:
    def __init__(self):
        self.items = []

    def add(self, net_cents, kind="other"):
        self.items.append((net_cents, kind))

    def total(self):
        return sum(net + calc(net, kind) for net, kind in self.items)

    def tax(self):
        return tax.calc_all(self.items)

    def shipping(self):
        return shipping.calc(len(self.items))
