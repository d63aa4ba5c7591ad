"""Figures and the HTML report, from a run directory alone."""
