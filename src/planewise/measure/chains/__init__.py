"""Trials of service chains: what every function transmits, on which CPU, and what bounds it."""
