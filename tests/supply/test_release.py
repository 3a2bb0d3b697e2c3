"""What must hold before a version is tagged: each rule is seen to fail."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from supply import changelog, release
from supply.built import in_sdist, in_wheel, sdist_refusals, wheel_refusals
from supply.release import checks, version_of
from supply.rules import Rules
from xc_core.errors import RefusedError

ROOT = Path(__file__).resolve().parents[2]
TODAY = date(2026, 11, 23)
GOOD = "# Changelog\n\nWhat changed.\n\n## 0.2.0 (2026-11-22)\n\n### New\n\n- A thing.\n\n## 0.1.0\n\n- First.\n"


def of_changelog(folder: Path, text: str, version: str = "0.2.0") -> list[str]:
    (folder / "CHANGELOG.md").write_text(text)
    return [str(one) for one in changelog.refusals(changelog.sections(folder / "CHANGELOG.md"), version, TODAY)]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("0.2.0 (2026-11-22)", "Unreleased", "found 'Unreleased' at the top"),
        ("0.2.0 (2026-11-22)", "0.3.0 (2026-11-22)", "found '0.3.0 (2026-11-22)' at the top"),
        ("0.2.0 (2026-11-22)", "0.2.0", "found '0.2.0' at the top"),
        ("(2026-11-22)", "(2026-11-31)", "a date in the heading, not in the future"),
        ("(2026-11-22)", "(2026-11-24)", "a date in the heading, not in the future"),
        ("- A thing.", "", "found nothing below '0.2.0 (2026-11-22)'"),
        ("## 0.1.0", "## 0.2.0", "found 0.2.0 above 0.2.0"),
        ("## 0.1.0", "## 0.10.0", "found 0.2.0 above 0.10.0"),
    ],
)
def test_the_top_section_of_the_changelog_is_that_of_the_version(
    tmp_path: Path, old: str, new: str, found: str
) -> None:
    assert of_changelog(tmp_path, GOOD) == []
    (message,) = of_changelog(tmp_path, GOOD.replace(old, new))
    assert found in message
    assert message.startswith("CHANGELOG.md: ")


def test_messages_about_the_changelog_say_what_to_write(tmp_path: Path) -> None:
    (message,) = of_changelog(tmp_path, GOOD.replace("0.2.0 (2026-11-22)", "Unreleased"))
    assert "rename it to `## 0.2.0 (2026-11-23)`" in message
    (message,) = of_changelog(tmp_path, GOOD.replace("0.2.0 (2026-11-22)", "Unreleased"), "0.1.0")
    assert "0.1.0 is in the changelog already: raise the version" in message
    assert "found no section" in of_changelog(tmp_path, "# Changelog\n")[0]


def test_no_point_of_the_changelog_stands_twice() -> None:
    """A merge once kept both versions of a point, one cut in two by the other."""
    for part in re.split(r"^#+ ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE):
        heads = re.findall(r"^- (\*\*.+?\*\*:)", part, re.MULTILINE)
        assert sorted(heads) == sorted(set(heads)), part.splitlines()[0]


def test_no_twelve_words_of_the_changelog_stand_twice() -> None:
    """Another merge did so inside a point, in the middle of a sentence."""
    words = (ROOT / "CHANGELOG.md").read_text("utf-8").split()
    runs = Counter(" ".join(words[start : start + 12]) for start in range(len(words) - 11))
    assert [run for run, count in runs.items() if count > 1] == []


def test_no_point_of_the_changelog_has_a_link_twice() -> None:
    """A third merge kept the last line of a point in both versions."""
    for point in re.split(r"^(?:- |#|$)", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE):
        links = re.findall(r"\]\(([^)]+)\)", point)
        assert sorted(links) == sorted(set(links)), point


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A committed project of version 0.2.0."""
    texts = {
        "pyproject.toml": '[project]\nname = "xc-platform"\nversion = "0.2.0"\n',
        "xc_core/__init__.py": '"""Code."""\n\n__version__ = "0.2.0"\n',
        "deploy/serve.yaml": "image: registry.example/xc-platform:0.2.0\n",
        "docs/lab-notes/note.md": "Measured in xc-platform:0.1.0.\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_every_place_names_the_version_of_pyproject(project: Path) -> None:
    assert version_of(project) == "0.2.0"
    assert list(release.versions(project, "0.2.0")) == []
    code, image = map(str, release.versions(project, "0.3.0"))
    assert code.startswith("xc_core/__init__.py: found 0.2.0\n  expected: the version of pyproject.toml, 0.3.0\n")
    assert image.startswith("deploy/serve.yaml: found xc-platform:0.2.0\n")


def test_the_tree_is_committed_and_the_tag_is_new(project: Path) -> None:
    assert list(release.git(project, "0.2.0")) == []
    git(project, "tag", "v0.2.0")
    (project / "new.txt").write_text("x")
    changed, tag = map(str, release.git(project, "0.2.0"))
    assert "found differences from the commit in new.txt" in changed
    assert "found the tag v0.2.0" in tag
    (project / "new.txt").unlink()
    assert list(release.git(project, "0.2.1")) == []


WHEEL = {"xc_core/a.py", "xc_core/recipes/resolved/a.yaml", "assets/b.py", "pipelines/c.py"}
OWN = {"xc_platform-1.dist-info/METADATA", "xc_platform-1.dist-info/licenses/LICENSE"}
BESIDE = {"CHANGELOG.md", "LICENSE", "README.md", "constraints.txt", "pyproject.toml"}
KNOWN = WHEEL | BESIDE | {"tests/test_a.py", "data/wordnet-mini/raw/trn.json.gz"}


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (WHEEL | OWN - {"xc_platform-1.dist-info/licenses/LICENSE"}, "no LICENSE"),
        (WHEEL - {"xc_core/recipes/resolved/a.yaml"} | OWN, "no xc_core/recipes/resolved/a.yaml"),
        (WHEEL | OWN | {"data/mine/raw/trn.json.gz"}, "also data/mine/raw/trn.json.gz"),
        (WHEEL | OWN | {"tests/test_a.py"}, "also tests/test_a.py"),
        (WHEEL | OWN | {"xc_core/scratch.py"}, "also xc_core/scratch.py"),
        (WHEEL | OWN | {f".xc/{i}" for i in range(7)}, "also .xc/0, .xc/1, .xc/2, .xc/3, .xc/4 and 2 more"),
    ],
)
def test_a_wheel_holds_the_tracked_files_of_the_packages_and_nothing_else(held: set[str], found: str) -> None:
    assert list(wheel_refusals(WHEEL | OWN, KNOWN)) == []
    (error,) = wheel_refusals(held, KNOWN)
    assert error.found == found


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (WHEEL | BESIDE - {"CHANGELOG.md"} | {"PKG-INFO"}, "no CHANGELOG.md"),
        (WHEEL | BESIDE | {"PKG-INFO", ".env"}, "also .env"),
        (WHEEL | BESIDE | {"data/wordnet-mini/raw/trn.json.gz"}, "also data/wordnet-mini/raw/trn.json.gz"),
    ],
)
def test_an_sdist_holds_what_the_wheel_is_built_from(held: set[str], found: str) -> None:
    assert list(sdist_refusals(WHEEL | BESIDE | {"PKG-INFO", ".gitignore"}, KNOWN)) == []
    (error,) = sdist_refusals(held, KNOWN)
    assert error.found == found


def test_all_checks_are_run() -> None:
    assert list(checks(ROOT, TODAY)) == [f"version {version_of(ROOT)}", "changelog", "git", "sdist and wheel"]
    assert list(release.versions(ROOT, version_of(ROOT))) == []


def test_a_release_has_the_extras_of_the_image() -> None:
    extras = re.search(r"'\.\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    assert extras is not None
    assert extras[1].split(",") == list(Rules.open().extras)


@pytest.mark.slow
def test_the_built_files_work_and_faults_in_them_are_seen(tmp_path: Path) -> None:
    """The project is cloned and built; then a file is missing, one is surplus, and the version is another."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(ROOT), str(clone))
    version = version_of(clone)
    assert list(release.files(clone, version)) == []
    (clone / "data/mine").mkdir()
    (clone / "xc_core/scratch.txt").write_text("left over")
    page = clone / "xc_core/serve/page.html"
    page.unlink()
    found = [error.found for error in release.files(clone, "9.9")]
    assert found == [
        "no xc_core/serve/page.html",
        "also xc_core/scratch.txt",
        "no xc_core/serve/page.html",
        "also xc_core/scratch.txt",
        f"that `xc --version` says 'xc, version {version}'",
    ]
    (clone / "README.md").unlink()
    with pytest.raises(RefusedError, match=r"that the build fails: .*README\.md"):
        list(release.files(clone, version))


def test_the_files_of_archives_are_listed(tmp_path: Path) -> None:
    import tarfile
    import zipfile

    (tmp_path / "a.txt").write_text("x")
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.write(tmp_path / "a.txt", "p/a.txt")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as sdist:
        sdist.add(tmp_path / "a.txt", "name-1.0/p/a.txt")
    assert in_wheel(tmp_path / "a.whl") == in_sdist(tmp_path / "a.tar.gz") == {"p/a.txt"}
