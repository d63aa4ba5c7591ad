"""Measures pairs of many hosts within a budget of load, and finds slow nodes.

Joins the rooms for a fleet, as `pipeline` does for one run.
"""
