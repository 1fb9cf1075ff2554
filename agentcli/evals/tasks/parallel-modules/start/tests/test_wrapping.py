import unittest

from planner.report import report
from planner.wrapping import justify, wrap


class Wrapping(unittest.TestCase):
    def test_lines(self):
        self.assertEqual(wrap("one two three four", 9), ["one two", "three", "four"])

    def test_paragraphs(self):
        self.assertEqual(wrap("one\n\ntwo", 9, indent="> "), ["> one", "", "> two"])

    def test_wider_gaps_are_on_the_left(self):
        self.assertEqual(justify("a b c", 8), "a   b  c")

    def test_a_report(self):
        self.assertEqual(report("1.2.0", [(5, 65)], "No mail."), "Release 1.2.0\n     5 to   65\n  No mail.")


if __name__ == "__main__":
    unittest.main()
