"""Adaptive trials that find NDR and PDR. Knows a measurer, no testbed."""
