import unittest

from planner.intervals import first_gap, merge, subtract


class Intervals(unittest.TestCase):
    def test_those_that_overlap_become_one(self):
        self.assertEqual(merge([(5, 9), (0, 3), (2, 4)]), [(0, 4), (5, 9)])

    def test_those_that_touch_become_one(self):
        self.assertEqual(merge([(0, 3), (3, 5)]), [(0, 5)])

    def test_a_hole_is_cut(self):
        self.assertEqual(subtract([(0, 10)], [(4, 6)]), [(0, 4), (6, 10)])

    def test_the_first_gap(self):
        self.assertEqual(first_gap([(0, 10), (12, 20)], 5, 0, 30), (20, 25))


if __name__ == "__main__":
    unittest.main()
