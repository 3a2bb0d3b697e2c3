"""What a person sees and clicks in Dagster and MLflow, behind `xc ui`, in a real browser: `make test-face`."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.face.ui import Ui
from tests.face.visit import MINUTE, ended, entry, fits, launched, loaded, opened, partition, plot, shoot

pytestmark = [pytest.mark.slow, pytest.mark.chain, pytest.mark.timeout(3000)]

PROGRESS = re.compile(r"training encoder: \d+ % \([\d,]+ of [\d,]+ steps\), [\d,.]+ steps/s, \d+ \w+( \d+ \w+)? left")


def test_a_partition_is_materialised_by_clicks(page: Page, ui: Ui, retrain: str) -> None:
    page.goto(f"{ui.dagster}/runs/{retrain}")
    ended(page, "Success")
    (run,) = [run for run in ui.runs() if run["runId"] == retrain]
    assert (run["jobName"], run["status"], run["tags"]["dagster/partition"]) == ("retrain", "SUCCESS", "toy|ngame")


@pytest.mark.usefixtures("retrain")
def test_figures_and_plots_need_no_click(page: Page, ui: Ui) -> None:
    partition(page, ui, "evaluation")
    expect(entry(page, "metrics")).to_contain_text("fusion (the model)")
    expect(entry(page, "metrics")).to_contain_text("PSP@5")
    for name in ("deciles", "training"):
        picture = entry(page, name).get_by_role("img")
        loaded(picture)
        assert fits(picture, page)


@pytest.mark.usefixtures("retrain")
def test_the_report_of_a_model_is_one_click_away(page: Page, ui: Ui) -> None:
    partition(page, ui, "evaluation")
    report = opened(page, entry(page, "report").get_by_role("link").first)
    inside = report.frame_locator("iframe").last
    expect(inside.get_by_role("heading", name="toy / ngame")).to_be_visible()
    expect(inside.locator("body")).to_contain_text("95 % intervals over documents")
    shoot(report, "report_in_mlflow")


def test_a_run_in_mlflow_and_its_run_in_dagster_lead_to_each_other(page: Page, ui: Ui, retrain: str) -> None:
    partition(page, ui, "evaluation")
    mlflow = opened(page, entry(page, "mlflow_run").get_by_role("link").first)
    expect(mlflow.get_by_text("Evaluates the model on test documents")).to_be_visible()
    expect(mlflow.get_by_role("link", name="Model registry")).to_be_visible()
    mlflow.get_by_text("Show more").click()
    loaded(plot(mlflow, "deciles"))
    shoot(mlflow, "run_in_mlflow")
    expect(mlflow.get_by_role("link", name="evaluation of toy|ngame")).to_have_attribute(
        "href", re.compile(re.escape(f"{ui.dagster}/assets/evaluation?"))
    )
    back = opened(mlflow, mlflow.get_by_role("link", name=retrain[:8], exact=True))
    expect(back).to_have_url(f"{ui.dagster}/runs/{retrain}")
    ended(back, "Success")


def test_the_page_of_a_version_says_what_it_is_and_where_it_comes_from(page: Page, ui: Ui, retrain: str) -> None:
    partition(page, ui, "model")
    expect(entry(page, "gate")).to_contain_text("version 1 is champion: the first one")
    version = opened(page, entry(page, "mlflow_model").get_by_role("link").first)
    expect(version.get_by_role("heading", name="Version 1")).to_be_visible()
    expect(version.get_by_text("Figures on test documents, in percent.")).to_be_visible()
    expect(
        version.get_by_role("row", name=re.compile(r"P@5\s+\d+\.\d\d\s+\d+\.\d\d to \d+\.\d\d")).first
    ).to_be_visible()
    expect(version.get_by_role("row", name=re.compile("opens and answers .* passed"))).to_be_visible()
    loaded(plot(version, "deciles"))
    expect(version.get_by_role("link", name=retrain)).to_have_attribute("href", f"{ui.dagster}/runs/{retrain}")
    shoot(version, "version_in_mlflow")
    report = opened(version, version.get_by_role("link", name="ngame.html")).frame_locator("iframe").last
    expect(report.get_by_role("heading", name="toy / ngame")).to_be_visible()
    page.goto(f"{ui.mlflow}/#/models/xc-toy")
    expect(page.get_by_text("Labels for texts of the dataset toy.")).to_be_visible()
    expect(page.get_by_text("champion").first).to_be_visible()


@pytest.mark.usefixtures("retrain")
def test_the_gate_shows_its_lines_among_the_checks(page: Page, ui: Ui) -> None:
    page.goto(f"{ui.dagster}/assets/model?view=checks&checkDetail=gate")
    expect(page.get_by_text("The model is not worse than the champion")).to_be_visible()
    expect(page.get_by_text("Passed", exact=True).first).to_be_visible()
    expect(page.get_by_role("cell", name="opens and answers", exact=True)).to_be_visible()


@pytest.mark.usefixtures("retrain")
def test_a_training_shows_the_time_left_and_ends_at_a_click(page: Page, ui: Ui) -> None:
    run = launched(page, ui, "/assets/encoder", "toy", "slow")
    expect(page.get_by_text(PROGRESS).first).to_be_visible(timeout=4 * MINUTE)
    shoot(page, "progress")
    assert ui.trains()
    page.get_by_role("button", name="Terminate").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Terminate")).click()
    ended(page, "Canceled", minutes=3)
    assert not ui.trains(), "the training ends before its run does"
    (found,) = [one for one in ui.runs() if one["runId"] == run]
    assert found["status"] == "CANCELED"
    assert not [one for one in ui.runs() if one["tags"].get("dagster/parent_run_id") == run], "it is not tried again"


def test_a_schedule_that_is_switched_on_starts_a_run(page: Page, ui: Ui) -> None:
    page.goto(f"{ui.dagster}/automation")
    row = page.locator("[data-index]", has=page.get_by_text("refresh_toy", exact=True))
    expect(row).to_contain_text("Every minute")
    switch, handle = row.get_by_role("checkbox").nth(1), row.locator("label").nth(1)  # the first box selects the row
    expect(switch).not_to_be_checked()
    handle.click()
    expect(switch).to_be_checked()
    page.get_by_role("link", name="refresh_toy").click()
    ticked = page.get_by_text("1 run requested").or_(page.get_by_text("Requested 1 run")).first
    expect(ticked).to_be_visible(timeout=4 * MINUTE)
    shoot(page, "tick")
    page.goto(f"{ui.dagster}/automation")
    expect(switch).to_be_checked()
    handle.click()
    expect(switch).not_to_be_checked()
    started = [run for run in ui.runs() if run["tags"].get("dagster/schedule_name") == "refresh_toy"]
    wanted = {"dagster/partition": "toy", "xc/next": "refresh"}
    assert started
    assert all(run["jobName"] == "prepare" and wanted.items() <= run["tags"].items() for run in started)
