"""What a person does and sees in Dagster and MLflow, in steps. All waiting is in ``expect``: nothing sleeps."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from playwright.sync_api import Locator, Page, expect

from tests.face.ui import Ui

MINUTE: Final = 60_000
"""In milliseconds, as the browser counts."""


def launched(page: Page, ui: Ui, place: str, *partition: str) -> str:
    """Launch a run of a job or an asset for a partition by clicks; show its page and return its id."""
    before = {run["runId"] for run in ui.runs()}
    page.goto(f"{ui.dagster}{place}")
    page.get_by_text(re.compile("^Materialize")).first.click()
    title = page.get_by_text(re.compile("Launch runs to materialize")).first
    expect(title).to_be_visible()
    for value in partition:
        page.get_by_text("Select a partition or create one").first.click()
        page.get_by_placeholder("Filter partitions").fill(value)
        page.get_by_title(value, exact=True).last.click()
        title.click()  # closes the list
        expect(page.get_by_placeholder("Filter partitions")).to_have_count(0)
    page.get_by_role("button", name=re.compile("^Launch (1 )?run$")).click()
    run = ui.new_run(before)
    page.goto(f"{ui.dagster}/runs/{run}")
    return run


def ended(page: Page, status: str, minutes: float = 20) -> None:
    """Wait until the run's page says that it has ended, and how."""
    end = page.get_by_text(re.compile("^(Success|Failure|Canceled)$")).first
    expect(end).to_be_visible(timeout=minutes * MINUTE)
    expect(end).to_have_text(status)


def opened(page: Page, link: Locator) -> Page:
    """Click a link that opens a page of its own; return that."""
    with page.expect_popup() as popup:
        link.click()
    return popup.value


def partition(page: Page, ui: Ui, asset: str) -> None:
    """Open the page of an asset at the partition toy, ngame."""
    page.goto(f"{ui.dagster}/assets/{asset}?view=partitions&partition=toy%7Cngame")


def entry(page: Page, name: str) -> Locator:
    """Return the row of the metadata with this name."""
    return page.locator("tr", has=page.get_by_role("cell", name=name, exact=True)).first


def plot(page: Page, name: str) -> Locator:
    """Return a plot on a page of MLflow, which shows pictures without their names."""
    return page.locator(f'img[src*="{name}.png"]')


def loaded(picture: Locator) -> None:
    """Wait until a picture is visible and its content has been loaded."""
    expect(picture).to_be_visible()
    expect(picture).not_to_have_js_property("naturalWidth", 0)


def fits(picture: Locator, page: Page) -> bool:
    """Return True if no part of a picture is right of the window."""
    box, window = picture.bounding_box(), page.viewport_size
    return box is not None and window is not None and box["x"] + box["width"] <= window["width"]


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the page if XC_FACE_SHOTS names a folder."""
    if folder := os.environ.get("XC_FACE_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")
