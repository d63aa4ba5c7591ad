"""The VFs of a NIC, and the daemon that gives them to guests."""
