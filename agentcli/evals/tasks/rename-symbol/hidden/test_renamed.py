import unittest

import shop.tax
from shop.cart import Cart
from shop.report import recalc
from shop.tax import calc_all, tax_for


class Renamed(unittest.TestCase):
    def test_the_new_name(self):
        self.assertEqual((tax_for(100), tax_for(50, "food"), calc_all([(100, "books")])), (19, 4, 7))

    def test_the_old_one_is_gone(self):
        self.assertFalse(hasattr(shop.tax, "calc"))

    def test_those_that_use_it(self):
        cart = Cart()
        cart.add(100)
        self.assertEqual((cart.total(), cart.tax(), recalc(cart)), (119, 19, ["100 + 19"]))
