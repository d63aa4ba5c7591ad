"""Hosts: where processes start, files are read and plans run; leftovers of killed runs."""
