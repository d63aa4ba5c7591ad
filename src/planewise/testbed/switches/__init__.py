"""Switches that Planewise starts, and the router under test."""
