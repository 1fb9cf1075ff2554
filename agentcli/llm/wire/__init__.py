"""Wire formats as pure functions, tested on recorded bytes: a request to its JSON body, stream events to ours."""
