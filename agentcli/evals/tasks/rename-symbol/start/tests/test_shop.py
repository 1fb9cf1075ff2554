import unittest

from shop import shipping
from shop.cart import Cart
from shop.report import recalc
from shop.tax import calc, calc_all


class Shop(unittest.TestCase):
    def test_calc(self):
        self.assertEqual((calc(100), calc(50, "food")), (19, 4))

    def test_calc_all(self):
        self.assertEqual(calc_all([(100, "other"), (100, "food")]), 26)

    def test_cart(self):
        cart = Cart()
        cart.add(100)
        self.assertEqual((cart.total(), cart.tax(), recalc(cart)), (119, 19, ["100 + 19"]))

    def test_shipping(self):
        self.assertEqual([shipping.calc(pieces) for pieces in (0, 1, 3)], [0, 500, 600])
        self.assertEqual(Cart().shipping(), 0)
