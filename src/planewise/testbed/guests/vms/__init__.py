"""Guests that are virtual machines, by libvirt."""
