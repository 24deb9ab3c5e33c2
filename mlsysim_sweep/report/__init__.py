"""One self-contained HTML page that answers a sweep's question."""

from mlsysim_sweep.report.content import gather
from mlsysim_sweep.report.page import html

__all__ = ["gather", "html"]
