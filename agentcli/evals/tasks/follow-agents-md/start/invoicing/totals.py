"""What an invoice comes to."""

from invoicing.lines import Invoice
from invoicing.money import share


def net_total(invoice: Invoice) -> int:
    """The sum of the lines, without tax."""
    return sum(line.count * line.price_cents for line in invoice.lines)


def tax_total(invoice: Invoice) -> int:
    return share(net_total(invoice), invoice.tax_permille, 1000)


def gross_total(invoice: Invoice) -> int:
    """What the customer pays: the lines and the tax on their sum."""
    return net_total(invoice) + tax_total(invoice)
