"""Markdown as styled text while it comes in; what comes out does not depend on where the text was cut."""
