"""Run in the agent's copy: the package is imported from the working directory."""

import os
import sys
import unittest

sys.path.insert(0, os.getcwd())

from planner.wrapping import justify, wrap


class Wrapping(unittest.TestCase):
    def test_lines_that_are_just_full(self):
        self.assertEqual(wrap("ab cd ef", 5), ["ab cd", "ef"])
        self.assertEqual(wrap("ab cd ef", 7, indent="  "), ["  ab cd", "  ef"])
        self.assertEqual(wrap("abcde fg", 5), ["abcde", "fg"])

    def test_any_blanks(self):
        self.assertEqual(wrap("  one\t two \n three  ", 20), ["one two three"])

    def test_nothing(self):
        self.assertEqual(wrap("", 10), [])
        self.assertEqual(wrap("\n\n  \n\n", 10, indent="> "), [])

    def test_paragraphs(self):
        self.assertEqual(wrap("\n\none\n\n\n\ntwo\nthree\n\n", 12, indent="- "), ["- one", "", "- two three"])

    def test_long_words(self):
        self.assertEqual(wrap("a bcdefghij k", 4), ["a", "bcde", "fghi", "j k"])
        self.assertEqual(wrap("abcdefgh i", 6, indent="  "), ["  abcd", "  efgh", "  i"])

    def test_an_indent_without_room(self):
        for width in (2, 3):
            with self.assertRaises(ValueError):
                wrap("one", width, indent="   ")
        self.assertEqual(wrap("one", 4, indent="   "), ["   o", "   n", "   e"])

    def test_all_words_are_kept(self):
        text = "The quick brown fox jumps over the extraordinarily lazy dog and sleeps. " * 5
        for width in range(15, 60):
            lines = wrap(text, width)
            self.assertEqual(" ".join(lines).split(), text.split())
            self.assertTrue(all(len(line) <= width and line == line.strip() for line in lines))
            for line, following in zip(lines, lines[1:]):
                self.assertGreater(len(line) + 1 + len(following.split()[0]), width)

    def test_justifying(self):
        self.assertEqual(justify("one two three", 16), "one   two  three")
        self.assertEqual(justify("a b", 3), "a b")
        self.assertEqual(justify("a b", 2), "a b")
        self.assertEqual(justify("a b", 9), "a       b")
        self.assertEqual(justify("word", 9), "word")
        self.assertEqual(justify("", 9), "")


if __name__ == "__main__":
    unittest.main()
