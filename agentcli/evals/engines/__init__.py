"""Make the attempts of a run: on this machine, or on a Ray cluster."""
