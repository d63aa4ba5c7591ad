"""Which plane for which workload: from measurements alone."""
