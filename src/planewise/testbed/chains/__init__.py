"""Service chains as testbeds: a switch, network functions behind it, and what feeds them."""
