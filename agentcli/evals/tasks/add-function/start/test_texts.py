import unittest

from texts import indent, one_line


class Texts(unittest.TestCase):
    def test_indent(self):
        self.assertEqual(indent("a\n\nb"), "    a\n\n    b")

    def test_one_line(self):
        self.assertEqual(one_line(" a\n b "), "a b")


if __name__ == "__main__":
    unittest.main()
