"""Runs: measures a design's visits in order and writes the run directory."""
