"""Plans maintenance windows."""
