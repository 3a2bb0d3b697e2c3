"""``xc serve`` as a process: hot swap under load, SIGTERM, its page in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from tests import forks
from tests.cli.conftest import Xc
from tests.cli.conftest import ready as ready
from tests.cli.conftest import xc as xc
from tests.processes import wait_for
from tests.serve.conftest import repacked
from xc_core import artifacts
from xc_core.chain import Workspace
from xc_core.infer.champion import in_folder
from xc_core.serve.server import _run
from xc_core.visible import percent

pytestmark = pytest.mark.chain

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "google-chrome")) if path), None)
SERVE = (sys.executable, "-m", "xc_core.cli.main", "serve", "--port", "0")
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@contextmanager
def serving(*arguments: object, **environment: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start the command on a free port; yield the port and the process."""
    command = [*SERVE, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if "answers on" in line:
                break
        else:
            raise AssertionError("".join(lines))
        try:
            yield int(line.rsplit(":", 1)[1]), process
        finally:
            process.kill()


@contextmanager
def forked(*arguments: object) -> Iterator[tuple[int, forks.Forked]]:
    """Do what ``serving`` does without a start of Python."""
    process = forks.start(forks.XC, "serve", "--port", 0, *arguments)
    try:
        wait_for(lambda: "answers on" in process.said() or process.poll() is not None, 60, "the address")
        (port,) = re.findall(r"answers on \S+:(\d+)\n", process.said())
        yield int(port), process
    finally:
        process.kill()


def ask(port: int, **question: Any) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/predict", json.dumps(question), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def renamed(source: Path, target: Path, ending: str) -> Path:
    """Pack a model again whose titles end with ``ending``, so that an answer shows which model gave it."""

    def rename(folder: Path) -> None:
        labels = pl.read_parquet(folder / "labels.parquet", glob=False)
        labels.with_columns(pl.col("title") + ending).write_parquet(folder / "labels.parquet")

    return repacked(source, rename, target)


def turn(folder: Path) -> None:
    """Give a model a dial that changes something; the page shows no other."""
    content = json.loads((folder / "fusion.json").read_text())
    content["dial"]["reach"] = 0.5
    (folder / "fusion.json").write_text(json.dumps(content))


def test_a_swap_under_load_loses_no_answer_and_mixes_none(folder: Path, tmp_path: Path) -> None:
    """Each answer's titles are those of the version that it names; a damaged model in between changes nothing."""
    bundle = renamed(folder, tmp_path / "bundle", " v0")
    versions, found, stop = {in_folder(bundle).version: " v0"}, [], threading.Event()

    def client(port: int) -> None:
        while not stop.is_set():
            found.append(ask(port, texts=["falcon0 castle1"] * 5, k=2))

    with serving("--bundle", bundle, "--poll", 0.05, "--max-batch", 3) as (port, _):
        clients = [threading.Thread(target=client, args=(port,)) for _ in range(3)]
        for thread in clients:
            thread.start()
        for number in range(1, 4):
            renamed(folder, bundle, f" v{number}")
            current = in_folder(bundle).version
            versions[current] = f" v{number}"
            wait_for(lambda current=current: ask(port, text="a")[1]["model"]["version"] == current, 60, "swap")  # type: ignore[misc]
        with artifacts.building(bundle, kind="model") as build:
            build.json("model.json", {})
        wait_for(lambda: _get(port, "/ready")["refused"] is not None, 60, "refusal")
        time.sleep(0.2)
        stop.set()
        for thread in clients:
            thread.join(30)
    assert [content for status, content in found if status != 200] == []
    for _, content in found:
        ending = versions[content["model"]["version"]]
        titles = [label["title"] for answer in content["answers"] for label in answer]
        assert len(titles) == 10 and all(title.endswith(ending) for title in titles)
    assert len({content["model"]["version"] for _, content in found}) == 4


def _get(port: int, path: str) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def _waits(port: int) -> bool:
    """Return True if a text waits for the model."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        return "xc_queue_texts 1.0" in connection.getresponse().read().decode()


def _closed(port: int) -> bool:
    """Return True if nothing listens on the port."""
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_answers_end_and_the_exit_code_is_0(folder: Path, number: signal.Signals) -> None:
    found: list[tuple[int, Any]] = []
    with forked("--bundle", folder, "--max-wait-ms", 3000) as (port, process):
        client = threading.Thread(target=lambda: found.append(ask(port, text="falcon", k=1)))
        client.start()
        wait_for(lambda: _waits(port), 30, "a question in the queue")
        os.kill(process.pid, number)
        client.join(30)
        ended = process.wait(30)
    assert ended.returncode == 0
    assert ended.stderr.splitlines()[-1] == "stopped; every request that had come was answered"
    assert [(status, content["answers"][0][0]["title"]) for status, content in found] == [(200, "falcon")]


def test_a_signal_before_uvicorn_listens_to_signals_ends_the_server_too() -> None:
    ended, before = [], signal.getsignal(signal.SIGTERM)

    def run(sockets: list[socket.socket]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with socket.socket() as listener:
        _run(SimpleNamespace(handle_exit=lambda number, _: ended.append(number), run=run), listener)  # type: ignore[arg-type]
    assert ended == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_drops_requests_and_says_so(folder: Path) -> None:
    """One waits for the model, of one the body has not come. The log had tracebacks, and the second got a 500."""
    found: list[tuple[int, Any]] = []
    begun = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with forked("--bundle", folder, "--max-wait-ms", 20_000) as (port, process), socket.socket() as slow:
        slow.connect(("127.0.0.1", port))
        slow.sendall(begun)
        client = threading.Thread(target=lambda: found.append(ask(port, text="falcon", k=1)))
        client.start()
        wait_for(lambda: _waits(port), 30, "a question in the queue")
        os.kill(process.pid, signal.SIGINT)
        wait_for(lambda: _closed(port), 30, "the end of the listener")
        os.kill(process.pid, signal.SIGINT)
        client.join(30)
        ended = process.wait(30)
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 503") and b'"found":"a server that ends"' in answer
    assert ended.returncode == 69
    assert ended.stderr.splitlines()[1] == "xc: found 2 requests without an answer at the end"
    assert len(ended.stderr.splitlines()) == 4
    assert [(status, content["found"]) for status, content in found] == [(503, "a server that ends")]


def test_the_process_counts_its_model_and_answers_to_names_of_this_machine(folder: Path) -> None:
    with (
        forked("--bundle", folder) as (port, _),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection,
    ):
        connection.request("GET", "/metrics")
        assert "xc_model_swaps_total 1.0" in connection.getresponse().read().decode().splitlines()
        connection.request("GET", "/health", headers={"Host": "example.org"})
        assert connection.getresponse().status == 421


def test_another_address_than_loopback_is_warned_of(folder: Path) -> None:
    with forked("--bundle", folder, "--host", "0.0.0.0") as (_, process):
        assert process.said().startswith("warning: other machines can reach http://0.0.0.0:")


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["--bundle", "/nowhere"], 66, "no artefact at /nowhere"),
        ([], 64, "neither --dataset nor --bundle"),
        (["--recipe", "ngame", "--dataset", "toy", "--queue", "0"], 78, "queue 0"),
        (["--recipe", "ngame", "--dataset", "toy", "--poll", "0"], 64, "--poll 0.0"),
        (["--recipe", "ngame", "--dataset", "toy", "--device", "gpu"], 78, "device 'gpu'"),
        (["--recipe", "ngame", "--dataset", "toy", "--host", "203.0.113.9"], 64, "203.0.113.9, port 8080"),
        (["--recipe", "ngame", "--dataset", "toy", "--port", "99999999"], 64, "127.0.0.1, port 99999999"),
    ],
)
def test_what_cannot_be_served_is_refused(
    xc: Xc, ready: Workspace, arguments: list[str], code: int, found: str
) -> None:
    xc("serve", *arguments).refused(code, found)


@pytest.mark.skipif(CHROMIUM is None, reason="no browser")
def test_a_person_types_a_text_and_sees_labels_and_reasons(folder: Path, tmp_path: Path) -> None:
    from playwright.sync_api import expect, sync_playwright

    bundle = repacked(renamed(folder, tmp_path / "bundle", HOSTILE), turn, tmp_path / "turned")
    with forked("--bundle", bundle) as (port, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, logged, requested = browser.new_page(), [], []  # type: ignore[var-annotated]
        page.on("console", lambda message: logged.append(message.text))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/")
        page.fill("#text", "falcon0 castle1")
        page.fill("#k", "3")
        page.click("#go")
        page.wait_for_selector(".label")
        titles = page.locator(".label .title").all_inner_texts()
        assert len(titles) == 3 and titles[0] in (f"falcon{HOSTILE}", f"castle{HOSTILE}"), "as text, not as HTML"
        assert page.title() == "Labels of a text"
        assert page.locator("#answer img, #answer script").count() == 0
        assert "classifier" in page.locator(".label").first.locator("table").inner_text()
        assert "version" in page.inner_text("#model")
        shares = page.locator(".label .score").all_inner_texts()
        found = ask(port, text="falcon0 castle1", k=3)[1]["answers"][0]
        assert shares == [percent(label["probability"]).replace("<", "< ").replace("%", " %") for label in found]
        for probability in (0.0, 0.004, 0.29, 0.496, 0.9996, 1.0):
            assert page.evaluate(f"percent({probability})").replace(" ", "") == percent(probability)
        expect(page.locator("#likely")).to_be_visible()
        between = (found[0]["probability"] + found[1]["probability"]) / 2
        page.fill("#least", f"{100 * between:.1f}")  # any number, not only the steps of the arrows
        page.click("#go")
        expect(page.locator(".label")).to_have_count(1)
        page.fill("#least", "0.0001")
        page.click("#go")
        expect(page.locator("#answer > p")).to_have_text("More labels are that probable: ask for more.")
        page.fill("#least", "100")
        page.click("#go")
        expect(page.locator("#answer")).to_have_text("No label is that probable.")
        page.fill("#least", "")
        page.locator("#tail").fill("1")
        page.locator("#tail").dispatch_event("change")
        expect(page.locator("#position")).to_have_text("1.00")
        page.fill("#text", " ")
        page.click("#go")
        expect(page.locator("#wrong")).to_contain_text("Found an empty text.")
        assert all(url.startswith((f"http://127.0.0.1:{port}/", "data:")) for url in requested)
        assert [line for line in logged if "422" not in line] == [], "nothing broke the policy"
        browser.close()


_ANSWERS = """
window.asked = [];
window.fetch = (place, options) => new Promise((resolve) => asked.push({ place, ...options, resolve }));
window.answer = (one, version) => one.resolve({ ok: true, json: async () => ({
  model: { dataset: "toy", version, recipe: "ngame" }, tail: 0, dial: true,
  answers: [[{ uid: version, title: version, score: 1, why: [], trees: null, dial: 0 }]],
}) });
"""
"""Lets the test decide when each request is answered, and by which version."""


@pytest.mark.skipif(CHROMIUM is None, reason="no browser")
def test_a_slow_answer_does_not_replace_that_of_a_later_move_of_the_dial() -> None:
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script(_ANSWERS)
        html = resources.files("xc_core.serve").joinpath("page.html").read_text("utf-8")
        page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
        page.goto("http://127.0.0.1/")
        page.fill("#text", "falcon0")
        page.click("#go")
        page.locator("#tail").fill("1")
        assert page.evaluate("asked.map((one) => one.place)") == ["ready", "predict", "predict"]
        page.evaluate("answer(asked[2], 'later')")
        expect(page.locator(".title")).to_have_text("later")
        page.evaluate("[asked[0], asked[1]].forEach((one) => answer(one, 'earlier'))")
        page.evaluate("new Promise(requestAnimationFrame)")
        assert page.locator(".title").all_inner_texts() == ["later"]
        assert page.inner_text("#model") == "toy, version later, recipe ngame", "/ready is answered last"
        assert page.is_enabled("#go")
        assert page.evaluate("asked[1].signal.aborted"), "the server need not answer it"
        browser.close()
