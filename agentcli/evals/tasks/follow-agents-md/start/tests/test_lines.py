import unittest

from invoicing import InvoiceError, Line, parse_line


class ParseLine(unittest.TestCase):
    def test_a_line(self):
        self.assertEqual(parse_line("3 x Notebook A5 @ 4.20"), Line("Notebook A5", 3, 420))

    def test_blanks_after_the_price(self):
        self.assertEqual(parse_line("1 x Pen @ 0.99  ").price_cents, 99)

    def test_no_price(self):
        with self.assertRaises(InvoiceError):
            parse_line("1 x Pen")


if __name__ == "__main__":
    unittest.main()
