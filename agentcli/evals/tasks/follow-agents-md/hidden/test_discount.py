"""Run in the agent's copy: the package is imported from the working directory."""

import os
import sys
import unittest

sys.path.insert(0, os.getcwd())

import invoicing
from invoicing import Invoice, InvoiceError, Line, gross_total, net_total, tax_total
from invoicing.totals import discounted_total


def invoice(cents: int, tax: int = 0) -> Invoice:
    return Invoice("T-1", (Line("Item", 1, cents),), tax)


class DiscountedTotal(unittest.TestCase):
    def test_off_the_gross_total(self):
        self.assertEqual(discounted_total(invoice(10_000, 190), 10), 10_710)

    def test_none_and_all(self):
        self.assertEqual(discounted_total(invoice(1_735), 0), 1_735)
        self.assertEqual(discounted_total(invoice(1_735), 100), 0)

    def test_the_discount_is_rounded_half_up(self):
        self.assertEqual(discounted_total(invoice(1_010), 5), 959)  # 50.5 becomes 51
        self.assertEqual(discounted_total(invoice(1_030), 5), 978)  # 51.5 becomes 52
        self.assertEqual(discounted_total(invoice(50), 1), 49)  # 0.5 becomes 1

    def test_whole_cents(self):
        for percent in range(101):
            self.assertIs(type(discounted_total(invoice(999), percent)), int)

    def test_amounts_that_a_float_cannot_hold(self):
        self.assertEqual(discounted_total(invoice(90_071_992_547_409_931), 3), 87_369_832_770_987_633)
        self.assertEqual(discounted_total(invoice(90_071_992_547_409_931), 0), 90_071_992_547_409_931)

    def test_an_invoice_without_lines(self):
        self.assertEqual(discounted_total(Invoice("T-2", ()), 50), 0)

    def test_wrong_percentages(self):
        for wrong in (-1, 101, 1_000, 12.5, "5", None):
            with self.subTest(wrong), self.assertRaises(InvoiceError):
                discounted_total(invoice(100), wrong)

    def test_it_is_public(self):
        self.assertIn("discounted_total", invoicing.__all__)
        self.assertIs(invoicing.discounted_total, discounted_total)
        self.assertLessEqual({"Invoice", "InvoiceError", "Line", "gross_total", "tax_total"}, {*invoicing.__all__})

    def test_what_was_there_is_as_it_was(self):
        self.assertEqual([f(invoice(1_458, 190)) for f in (net_total, tax_total, gross_total)], [1_458, 277, 1_735])


if __name__ == "__main__":
    unittest.main()
