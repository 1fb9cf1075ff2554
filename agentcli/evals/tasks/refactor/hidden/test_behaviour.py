import unittest

from orders import for_books, for_person, for_warehouse


def order(*items):
    return {"items": [dict(zip(("name", "count", "cents"), item)) for item in items]}


class Behaviour(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(for_person(order()), "shipping: 4.90\ntotal: 4.90")
        self.assertEqual(for_books(order()), [("shipping", "", 490), ("total", "", 490)])

    def test_the_limit_for_shipping(self):
        self.assertEqual(for_books(order(("a", 1, 2000))), [("sale", "a", 2000), ("total", "", 2000)])
        self.assertEqual(for_books(order(("a", 1, 1999)))[-1], ("total", "", 2489))
        self.assertEqual(for_warehouse(order(("a", 1, 2000))), "[ ] 1 A\nVALUE 2000")

    def test_ten_pieces(self):
        self.assertEqual(for_books(order(("a", 10, 7)))[0], ("sale", "a", 63))
        self.assertEqual(for_books(order(("a", 9, 7)))[0], ("sale", "a", 63))

    def test_the_discount_is_rounded_down(self):
        self.assertEqual([for_books(order(("a", n, 1)))[0][2] for n in (10, 11, 12, 19)], [9, 9, 10, 17])

    def test_person(self):
        self.assertEqual(for_person(order(("a", 11, 333))), "a x11: 32.96\ntotal: 32.96")
