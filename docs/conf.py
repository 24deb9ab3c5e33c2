"""Sphinx settings. The source folder is the root, so links between its pages are checked."""

from importlib.metadata import version as installed_version

project = "mlsysim-sweep"
author = "The mlsysim-sweep authors"
copyright = f"2026, {author}"
version = release = installed_version("mlsysim-sweep")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

root_doc = "docs/index"
include_patterns = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "decisions/*.md", "docs/*.md"]
exclude_patterns = [".git", ".venv*", "build", "dist", "kernels", "grids", "**/__pycache__"]

html_theme = "furo"
html_title = f"{project} {release}"
