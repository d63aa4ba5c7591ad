"""Adaptive trials: sequential sweep and NDR/PDR search. Knows a measurer, no testbed."""
