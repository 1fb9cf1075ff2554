"""Wire formats as pure functions: a request to its JSON body, stream events to ours.

No network here; recorded bytes test every format.
"""
