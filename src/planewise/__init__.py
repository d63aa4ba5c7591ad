"""Planewise: which network data plane should each guest on this host use?"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("planewise")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
