import unittest

from invoicing import Invoice, Line, gross_total, net_total, tax_total

INVOICE = Invoice("A-17", (Line("Notebook", 3, 420), Line("Pen", 2, 99)))


class Totals(unittest.TestCase):
    def test_net(self):
        self.assertEqual(net_total(INVOICE), 1458)

    def test_tax_is_rounded_half_up(self):
        self.assertEqual(tax_total(INVOICE), 277)
        self.assertEqual(tax_total(Invoice("A-18", (Line("Cable", 1, 50),))), 10)

    def test_gross(self):
        self.assertEqual(gross_total(INVOICE), 1735)

    def test_an_invoice_without_lines(self):
        self.assertEqual(gross_total(Invoice("A-19", ())), 0)


if __name__ == "__main__":
    unittest.main()
