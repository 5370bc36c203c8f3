"""The GPU panel as a widget: the sidebar's picture in a notebook."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.utils.capture import capture_output

from ..kernel import load_ipython_extension, status
from ..kernel.client import Client
from ..kernel.errors import GpuSliceError
from ..kernel.magics import kernel_id
from .feed import Feed, Picture

_FEED = Feed()


class GpuPanel(ipywidgets.VBox):
    """A live picture of this kernel's slice, its groups and the pool around them.

    It moves while the kernel is busy; its buttons act when the kernel is idle. ``close()`` stops
    it. Without an extension's server behind it, it says so.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._picture = ipywidgets.HTML(_frame("Looking…"))
        self._said = ipywidgets.HTML()
        self._amount = ipywidgets.Text(
            placeholder="0.5",
            description="Slice",
            layout={"width": "190px"},
            style={"description_width": "40px"},
        )
        self._resize = _button("Resize", "Ask for this slice, or change the present one to it")
        self._release = _button("Release", "Give this kernel's slice back")
        self._resize.on_click(lambda _: self._act_resize())
        self._release.on_click(lambda _: self._act("release"))
        controls = ipywidgets.HBox([self._amount, self._resize, self._release])
        super().__init__([self._picture, controls, self._said], **kwargs)
        self._following = True
        _FEED.subscribe(self._show)

    def close(self) -> None:
        """Stop following and take the panel off the page."""
        if self._following:
            self._following = False
            _FEED.unsubscribe(self._show)
            for child in (self._picture, self._said, self._amount, self._resize, self._release):
                child.close()
        super().close()

    def _show(self, picture: Picture) -> None:
        parts = []
        if picture.problem:
            words = picture.problem if picture.pool is None else f"Out of date: {picture.problem}"
            parts.append(_frame(f"⚠ {words}"))
        if picture.pool is not None:
            parts.append(status.html(picture.pool, picture.leases, picture.groups, kernel_id()))
        value = "".join(parts)
        if value != self._picture.value:
            self._picture.value = value

    def _act_resize(self) -> None:
        amount = self._amount.value.strip()
        if not amount:
            self._say("Write how much first: 0.5, say.")
            return
        try:
            mine = status.own_leases(Client.from_environment().listed("leases"), kernel_id())
        except GpuSliceError as error:
            self._say(str(error))
            return
        named = any(lease.get("request") != "auto" for lease in mine)
        self._act("resize" if named else "request", amount)

    def _act(self, *words: str) -> None:
        """Run a line of ``%gpu``, with its words in the panel and nowhere else."""
        shell: Any = get_ipython()
        try:
            load_ipython_extension(shell)
            with capture_output() as captured:
                shell.run_line_magic("gpu", " ".join(words))
            self._say(captured.stdout.strip())
        except Exception as error:
            self._say(str(error) or type(error).__name__)

    def _say(self, text: str) -> None:
        self._said.value = _frame(text)


def _button(description: str, tooltip: str) -> ipywidgets.Button:
    return ipywidgets.Button(
        description=description,
        tooltip=f"{tooltip} (once the kernel is idle)",
        layout={"width": "80px"},
    )


def _frame(text: str) -> str:
    lines = "<br>".join(escape(line) for line in text.split("\n"))
    return f'<style>{status.CSS}</style><div class="gpuslice">{lines}</div>'
