"""Live view of a run: its throughput and CPUs, on a terminal and on a local page.

Knows a run's kpis.jsonl and progress; no testbed.
"""
