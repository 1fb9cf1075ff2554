"""Run in the agent's copy: the package is imported from the working directory."""

import os
import sys
import unittest

sys.path.insert(0, os.getcwd())

from planner.intervals import first_gap, merge, subtract


class Intervals(unittest.TestCase):
    def test_one_within_another(self):
        self.assertEqual(merge([(0, 10), (2, 4), (9, 12), (12, 13)]), [(0, 13)])

    def test_empty_ones(self):
        self.assertEqual(merge([(3, 3), (5, 6), (8, 8), (6, 6)]), [(5, 6)])
        self.assertEqual(merge([]), [])

    def test_the_list_stays(self):
        given, taken = [(5, 6), (1, 2)], [(9, 10), (5, 6)]
        merge(given)
        subtract(given, taken)
        first_gap(taken, 1, 0, 20)
        self.assertEqual((given, taken), ([(5, 6), (1, 2)], [(9, 10), (5, 6)]))

    def test_one_that_ends_before_it_starts(self):
        with self.assertRaises(ValueError):
            merge([(0, 1), (5, 4)])

    def test_subtracting(self):
        self.assertEqual(subtract([(0, 10), (10, 20)], [(15, 30), (2, 4), (3, 5)]), [(0, 2), (5, 15)])
        self.assertEqual(subtract([(0, 10)], [(0, 4), (8, 10)]), [(4, 8)])
        self.assertEqual(subtract([(2, 5)], [(0, 10)]), [])
        self.assertEqual(subtract([(2, 5)], [(0, 2), (5, 9)]), [(2, 5)])

    def test_nothing_is_subtracted(self):
        self.assertEqual(subtract([(0, 10)], [(4, 4)]), [(0, 10)])
        self.assertEqual(subtract([(4, 6), (0, 4)], []), [(0, 6)])

    def test_minute_by_minute(self):
        given, taken = [(0, 7), (5, 12), (20, 31), (40, 41)], [(3, 6), (11, 25), (25, 26), (30, 45)]
        minutes = {m for a, b in given for m in range(a, b)} - {m for a, b in taken for m in range(a, b)}
        left = subtract(given, taken)
        self.assertEqual({m for a, b in left for m in range(a, b)}, minutes)
        self.assertEqual(left, [(0, 3), (6, 11), (26, 30)])

    def test_gaps(self):
        self.assertEqual(first_gap([], 5, 10, 15), (10, 15))
        self.assertEqual(first_gap([(0, 12), (14, 40)], 2, 10, 50), (12, 14))
        self.assertEqual(first_gap([(30, 40), (0, 12)], 6, 10, 50), (12, 18))
        self.assertIsNone(first_gap([(12, 14)], 5, 10, 18))


if __name__ == "__main__":
    unittest.main()
