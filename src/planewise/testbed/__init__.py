"""Hosts, guests and the planes between them: builds them as plans, and always tears them down.

Knows nothing of measurements: `measure` asks it for interfaces, addresses and capture points.
"""
