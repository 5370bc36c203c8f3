"""Build the JupyterLab extension into the wheel (called by hatch-jupyter-builder)."""

from __future__ import annotations

from pathlib import Path

from hatch_jupyter_builder import npm_builder

SOURCE = Path("labextension")
OUTPUT = Path("jupyter_gpuslice", "labextension")


def build(target_name: str, version: str) -> None:
    """Build the extension with jlpm; an editable install takes what is already built.

    An editable install is how a developer starts, often for the Python side alone, so it neither
    waits for npm packages nor fails without the extension: `make labextension` builds that.
    """
    if version == "editable":
        # the wheel's shared data names the folder, so it must be there, be it empty
        OUTPUT.mkdir(parents=True, exist_ok=True)
        return
    npm_builder(target_name, version, path=str(SOURCE), build_cmd="build:prod", npm=["jlpm"])
