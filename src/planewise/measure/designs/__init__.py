"""Designs: what a run is to measure, checked, expanded to cells and put in order."""
