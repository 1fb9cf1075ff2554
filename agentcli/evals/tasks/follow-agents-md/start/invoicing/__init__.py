"""Invoices: their lines, their totals."""

from invoicing.errors import InvoiceError
from invoicing.lines import Invoice, Line, parse_line
from invoicing.totals import gross_total, net_total, tax_total

__all__ = [
    "Invoice",
    "InvoiceError",
    "Line",
    "gross_total",
    "net_total",
    "parse_line",
    "tax_total",
]
