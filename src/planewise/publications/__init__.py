"""The publications' claims, checked against runs of this tool."""
