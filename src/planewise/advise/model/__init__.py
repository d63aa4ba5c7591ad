"""The capacity model: what a chain of network functions can carry, and which station limits it."""
