"""Trials on a testbed: RTT with capture points, load trials, sweeps, factorial experiments.

Runs `pw-probe` where the packets are and writes a run directory. Judges nothing.
"""
