"""Measuring many hosts: which pairs, under which budget, on whom it rests; and what they tell.

Joins the rooms for a fleet as `pipeline` does for one run, and starts its runs by it.
"""
