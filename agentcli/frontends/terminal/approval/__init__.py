"""Questions to the person, and lists to choose from; what asks at all is decided in agent/."""
