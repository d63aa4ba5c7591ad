"""Guests that are virtual machines, by libvirt. Knows hosts and planes; no measurement."""
