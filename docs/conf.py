"""Sphinx configuration: `make docs` builds into build/docs."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "jupyter_gpuslice"
author = "jupyter_gpuslice contributors"
copyright = "2026, jupyter_gpuslice contributors"
release = version_of("jupyter_gpuslice")
version = ".".join(release.split(".")[:2])

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = "jupyter_gpuslice"
html_theme_options = {"show_prev_next": False}
# the page on architecture shows code that is a sketch, not a language's
suppress_warnings = ["misc.highlighting_failure"]
