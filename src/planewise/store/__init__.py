"""The run directory (format 1) and importers and exporters of other tools' results."""
