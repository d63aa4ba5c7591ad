"""Fuzz targets: one entry function a parser. README.md says how to run them."""
