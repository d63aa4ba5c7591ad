"""Fuzz targets: one entry function a parser. docs/reference/fuzzing.md says how to run them."""
