"""Links between Dagster and MLflow: right ones, or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assets import links

MODE = "?workflowType=machine_learning"
PAGES: list[tuple[Callable[[], str | None], str]] = [
    (lambda: links.dagster_run("r1"), "http://d:3000/runs/r1"),
    (lambda: links.dagster_asset("model", "a b|c"), "http://d:3000/assets/model?view=partitions&partition=a%20b%7Cc"),
    (lambda: links.mlflow_run("1", "r"), f"http://m/x/#/experiments/1/runs/r{MODE}"),
    (lambda: links.mlflow_file("r", "a&b.png"), "http://m/x/get-artifact?path=a%26b.png&run_uuid=r"),
    (lambda: links.mlflow_shown("1", "r", "a#b.html"), f"http://m/x/#/experiments/1/runs/r/artifacts/a%23b.html{MODE}"),
    (lambda: links.mlflow_version("xc-toy", 3), f"http://m/x/#/models/xc-toy/versions/3{MODE}"),
]


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XC_DAGSTER_URL", "XC_MLFLOW_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("page", "address"), PAGES)
def test_a_page_has_a_link_if_its_address_is_known(
    monkeypatch: pytest.MonkeyPatch, page: Callable[[], str | None], address: str
) -> None:
    assert page() is None
    monkeypatch.setenv("XC_DAGSTER_URL", "http://d:3000/")
    monkeypatch.setenv("XC_MLFLOW_URL", "http://m/x/")
    assert page() == address


def test_a_run_of_the_command_line_has_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_DAGSTER_URL", "http://d:3000")
    assert links.dagster_run("") is None


@pytest.mark.parametrize(
    ("own", "tracking", "address"),
    [
        ("", "http://m:5000", "http://m:5000"),
        ("https://proxy/mlflow/", "http://m:5000", "https://proxy/mlflow"),
        ("", "https://ada:secret@m:5000/?x=1#y", "https://m:5000"),
        ("", "sqlite:////srv/mlflow.db", None),
        ("", "/srv/runs", None),
        ("", "databricks", None),
        ("javascript:alert(1)", "", None),
        ("http://", "", None),
        ("http://m:port", "", None),
        ("http://[::1", "", None),
        ("http://[::1]:5000", "", "http://[::1]:5000"),
        ("http://m/a b)c", "", "http://m/a%20b%29c"),
    ],
)
def test_the_address_of_mlflow_is_its_own_or_the_tracking_servers_without_secrets(
    monkeypatch: pytest.MonkeyPatch, own: str, tracking: str, address: str | None
) -> None:
    monkeypatch.setenv("XC_MLFLOW_URL", own)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    assert links.mlflow_address() == address


def test_a_link_in_markdown_shows_its_text_as_it_is() -> None:
    assert links.markdown("a [b]", "http://m") == "[a &#91;b&#93;](http://m)"
    assert links.markdown("a [b]", None) == "a &#91;b&#93;"
