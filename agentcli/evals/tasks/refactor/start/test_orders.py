import unittest

from orders import for_books, for_person, for_warehouse

ORDER = {"items": [{"name": "tea", "count": 2, "cents": 300}, {"name": "cup", "count": 10, "cents": 50}]}


class Orders(unittest.TestCase):
    def test_person(self):
        self.assertEqual(for_person(ORDER), "tea x2: 6.00\ncup x10: 4.50\nshipping: 4.90\ntotal: 15.40")

    def test_warehouse(self):
        self.assertEqual(for_warehouse(ORDER), "[ ] 2 TEA\n[ ] 10 CUP\n[ ] LABEL PAID\nVALUE 1540")

    def test_books(self):
        self.assertEqual(for_books(ORDER)[-1], ("total", "", 1540))
