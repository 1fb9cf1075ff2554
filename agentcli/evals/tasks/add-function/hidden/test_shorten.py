import unittest

from texts import indent, one_line, shorten


class Shorten(unittest.TestCase):
    def test_what_fits_stays(self):
        self.assertEqual([shorten("", 1), shorten("abc", 3), shorten("abc", 9)], ["", "abc", "abc"])

    def test_what_is_too_long_is_cut(self):
        self.assertEqual([shorten("abcdef", 4), shorten("abcdef", 5)], ["abc…", "abcd…"])

    def test_width_of_one(self):
        self.assertEqual(shorten("ab", 1), "…")

    def test_no_width(self):
        for width in (0, -1):
            with self.assertRaises(ValueError):
                shorten("a", width)

    def test_the_others(self):
        self.assertEqual((indent("a"), one_line("a  b")), ("    a", "a b"))
