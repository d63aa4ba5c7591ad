"""A run while it goes on: its throughput and CPUs, on a terminal and on a local page.

Knows what stands in a run directory and what a run tells its progress; no testbed.
"""
