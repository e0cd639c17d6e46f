"""A page opened in Chromium, with all that it asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def opened(browser: Any, path: Path, **settings: Any) -> Iterator[Any]:
    """The page of a file, as often as a loop asks: once. `page.told` has its requests, errors and dialogs."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | settings)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.told = []
    page.on("request", lambda request: page.told.append(request.url))
    page.on("pageerror", lambda error: page.told.append(f"error {error}"))
    page.on("dialog", lambda dialog: page.told.append("dialog"))
    page.goto(path.as_uri())
    yield page
    context.close()
