class InvoiceError(Exception):
    """Something about an invoice that a customer can put right; its text is shown to them."""
