"""Figures and the HTML report, from a run directory alone. Knows no testbed and starts no trial."""
