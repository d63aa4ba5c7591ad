"""Guests: namespaces, containers and virtual machines."""
