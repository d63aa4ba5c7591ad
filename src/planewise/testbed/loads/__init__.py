"""Background load of guests."""
