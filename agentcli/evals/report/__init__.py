"""Shows a run as an HTML page with charts, or as Markdown for a pull request."""
