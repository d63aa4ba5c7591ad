"""The report's figures: one module a figure, drawn from plain summaries.

Every figure is drawn twice from one function, wide and narrow (a phone), because a drawing that
is merely shrunk cannot be read. `save` writes a figure as SVG, PDF, PNG or interactive HTML.
"""

from planewise.report.figures.base import Figure, Table, save
from planewise.report.figures.loss_curve import load_loss

__all__ = ["Figure", "Table", "load_loss", "save"]
