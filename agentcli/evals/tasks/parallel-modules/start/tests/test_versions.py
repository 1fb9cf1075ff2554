import unittest

from planner.versions import Version, fits


class Versions(unittest.TestCase):
    def test_numbers_are_numbers(self):
        self.assertLess(Version("1.9.0"), Version("1.10.0"))

    def test_a_pre_release_comes_first(self):
        self.assertLess(Version("1.0.0-rc.1"), Version("1.0.0"))

    def test_a_caret(self):
        self.assertTrue(fits("1.9.0", "^1.2.3"))
        self.assertFalse(fits("2.0.0", "^1.2.3"))

    def test_below(self):
        self.assertFalse(fits("2.0.0", ">=1.0.0 <2.0.0"))


if __name__ == "__main__":
    unittest.main()
