"""One module a command: options with their help, one call into the rooms, what is printed.

Imports at the top of these modules must be quick (typer, errors, the standard library): rooms that
need polars or scipy are imported inside the command's function.
"""
