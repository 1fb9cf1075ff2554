"""The steps around the requests of a turn. A new step is a class, with a place in the list of `usual_steps`."""
