"""One `xc ui`, one browser and one trained recipe for all tests of the face."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.face.ui import Ui, running
from tests.face.visit import MINUTE, ended, launched, shoot

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "google-chrome")) if path), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; it waits for minutes, because the machine may be busy."""
    if CHROMIUM is None:
        pytest.skip("no browser: install chromium")
    expect.set_options(timeout=2 * MINUTE)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def ui(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:  # skipped without a browser
    """`xc ui` on the toy world."""
    with running(tmp_path_factory.mktemp("face")) as found:
        yield found


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a fresh browser; a picture of it is kept at its end."""
    with _context(browser) as context:
        opened = context.new_page()
        yield opened
        shoot(opened, request.node.name)


@pytest.fixture(scope="session")
def retrain(browser: Browser, ui: Ui) -> str:
    """Prepare the dataset and train the recipe ngame by clicks; the id of the run that trained."""
    with _context(browser) as context:
        page = context.new_page()
        launched(page, ui, "/locations/xc/jobs/prepare", "toy")
        ended(page, "Success")
        run = launched(page, ui, "/locations/xc/jobs/retrain", "toy", "ngame")
        expect(page.get_by_text('Started execution of step "encoder".')).to_be_visible()
        shoot(page, "run_at_work")
        ended(page, "Success")
        shoot(page, "run_at_its_end")
    return run


def _context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    context.set_default_timeout(4 * MINUTE)
    return context
