import copy
import unittest

import before
import orders


def order(*items):
    return {"items": [dict(zip(("name", "count", "cents"), item, strict=True)) for item in items]}


class Behaviour(unittest.TestCase):
    def same(self, *items):
        for name in ("for_person", "for_warehouse", "for_books"):
            given = order(*items)
            wanted = getattr(before, name)(copy.deepcopy(given))
            self.assertEqual(getattr(orders, name)(given), wanted, (name, items))
            self.assertEqual(given, order(*items), f"{name} changed the order")

    def test_nothing(self):
        self.same()

    def test_the_limit_for_shipping(self):
        for cents in (0, 1, 1999, 2000, 2001, 9999):
            self.same(("a", 1, cents))

    def test_from_ten_pieces_on(self):
        for count in range(22):
            for cents in (0, 1, 7, 199, 333):
                self.same(("a", count, cents))

    def test_the_limit_counts_after_the_discount(self):
        for cents in (200, 222, 223, 224):
            self.same(("a", 10, cents))

    def test_several_items(self):
        self.same(("tea", 11, 33), ("cup", 10, 71), ("pot", 1, 985))
        self.same(("tea", 5, 100), ("tea", 5, 100), ("Big cup", 1, 1001))
