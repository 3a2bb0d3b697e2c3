"""Licences: how they are read from metadata, which are refused, and that every package here has a good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from supply.installed import installed, needed
from supply.licences import by_licence, is_allowed, licence, refusals, unused
from supply.rules import Read, Rules
from tests.supply.packages import put
from xc_core.errors import ConfigError, MissingError

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"mit license": "MIT", "bsd license": "LicenseRef-BSD", "new bsd": "BSD-3-Clause", "either": "MIT OR ISC"}
RULES = Rules(
    allowed=frozenset({"MIT", "ISC", "BSD-3-Clause", "LicenseRef-BSD", "GPL-2.0-only WITH GCC-exception-2.0"}),
    names=NAMES,
)
AGPL = "Classifier: License :: OSI Approved :: GNU Affero General Public License v3"
MIT = "Classifier: License :: OSI Approved :: MIT License"
BSD = "Classifier: License :: OSI Approved :: BSD License"


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("AGPL-3.0-only", False),
        ("MIT OR AGPL-3.0-only", True),
        ("MIT AND AGPL-3.0-only", False),
        ("MIT AND (AGPL-3.0-only OR ISC)", True),
        ("(MIT AND AGPL-3.0-only) OR GPL-3.0-only", False),
        ("GPL-2.0-only", False),
        ("GPL-2.0-only WITH GCC-exception-2.0", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("MIT WITH GCC-exception-2.0", False),
    ],
)
def test_every_and_must_hold_and_one_side_of_every_or(expression: str, allowed: bool) -> None:
    assert is_allowed(expression, RULES.allowed) is allowed


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (["License-Expression: mit or isc"], "MIT OR ISC"),
        (["License-Expression: MIT", "License: something else", AGPL], "MIT"),
        (["License-Expression: Mine"], None),
        (["License: MIT"], "MIT"),
        (["License: MIT\n        License"], "MIT"),
        (["License: UNKNOWN", MIT], "MIT"),
        (["License: " + "Permission is hereby granted. " * 9, MIT], "MIT"),
        (["License: " + "Permission is hereby granted. " * 9], None),
        (["License: MIT", "Classifier: License :: OSI Approved"], "MIT"),
        (["License: MIT", AGPL], None),
        (["License: do what you like", MIT], None),
        (["License: ISC", MIT], "ISC AND MIT"),
        (["License: either", BSD], "(MIT OR ISC) AND LicenseRef-BSD"),
        (["License: either"], "MIT OR ISC"),
        (["License: New BSD", BSD], "BSD-3-Clause"),
        (["License: ISC", BSD], "ISC AND LicenseRef-BSD"),
        (["Classifier: License :: Other/Proprietary License"], None),
        ([], None),
    ],
)
def test_what_metadata_say_becomes_an_spdx_expression(tmp_path: Path, fields: list[str], found: str | None) -> None:
    assert licence(put(tmp_path, "thing", *fields), RULES) == found


def test_a_refusal_names_the_package_and_what_to_do(tmp_path: Path) -> None:
    packages = [
        put(tmp_path, "good", "License-Expression: MIT"),
        put(tmp_path, "viral", "License-Expression: AGPL-3.0-only", version="2.1"),
        put(tmp_path, "strange", "License: my own"),
        put(tmp_path, "silent"),
    ]
    viral, strange, silent = map(str, refusals(packages, RULES))
    assert viral.startswith("viral 2.1: found AGPL-3.0-only\n")
    assert "add it to `allowed` in rules.toml" in viral
    assert strange.startswith("strange 1.0: found 'my own', which is no known licence\n")
    assert silent.startswith("silent 1.0: found no licence in its metadata\n")
    assert "[licences.read] of rules.toml" in strange
    assert "[licences.read] of rules.toml" in silent
    assert by_licence(packages, RULES) == {
        "not known": ["strange", "silent"],
        "AGPL-3.0-only": ["viral"],
        "MIT": ["good"],
    }


def test_a_licence_that_was_read_counts_only_while_the_metadata_say_the_same(tmp_path: Path) -> None:
    rules = Rules(allowed=RULES.allowed, names=NAMES, read={"my-thing": Read("see LICENSE; MIT License", "ISC")})
    before = put(tmp_path / "before", "my.thing", "License: see LICENSE", MIT)
    after = put(tmp_path / "after", "my.thing", "License: see COPYING", MIT)
    clear = put(tmp_path / "clear", "my.thing", "License-Expression: AGPL-3.0-only")
    assert [licence(one, rules) for one in (before, after, clear)] == ["ISC", None, "AGPL-3.0-only"]
    assert [unused([one], rules) for one in (before, after, clear)] == [[], ["my-thing"], ["my-thing"]]
    assert unused([], rules) == [], "not installed here says nothing"


@pytest.mark.parametrize("wrong", [{"allowed": frozenset({"mit"})}, {"names": {"a": "Mine"}}])
def test_rules_that_are_not_spdx_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="an SPDX expression"):
        Rules(**{"allowed": RULES.allowed, **wrong})  # type: ignore[arg-type]


PROJECT = """
[project]
name = "Our.Thing"
dependencies = ["a", "windows-only; sys_platform == 'win32'"]
[project.optional-dependencies]
more = ["b[fast]>=1"]
all = ["our-thing[more]"]
other = ["absent"]
"""


def test_needed_packages_are_followed_through_extras_and_markers(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    site = tmp_path / "site"
    put(site, "a", "Requires-Dist: c")
    put(site, "b", "Provides-Extra: fast", "Requires-Dist: d; extra == 'fast'", "Requires-Dist: e; extra == 'slow'")
    put(site, "c", "Requires-Dist: a", "Requires-Dist: b")  # a circle; b without its extra
    for name in ("d", "e", "stray"):
        put(site, name)

    def names(*extras: str) -> list[str]:
        return [one.name for one in needed(tmp_path, extras, site)]

    assert names() == ["a", "b", "c"]
    assert names("all") == names("more") == ["a", "b", "c", "d"]
    assert set(installed(site)) == {"a", "b", "c", "d", "e", "stray"}
    with pytest.raises(MissingError, match=r"not installed: absent\n.*\n.*pip install -c constraints.txt"):
        names("other")
    with pytest.raises(MissingError, match="the extras unheard"):
        names("unheard")


PROPRIETARY = ["License: LicenseRef-NVIDIA-Proprietary", "Classifier: License :: Other/Proprietary License"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cuda-toolkit", []),
        ("nvidia-cublas", ["License-Expression: LicenseRef-NVIDIA-Proprietary"]),
        *((f"nvidia-{name}", PROPRIETARY) for name in ("cuda-cupti", "cuda-nvrtc", "cufft", "cufile", "curand")),
        *((f"nvidia-{name}", PROPRIETARY) for name in ("cusolver", "cusparse")),
        ("nvidia-cusparselt-cu13", ["License: NVIDIA Proprietary Software"]),
        ("nvidia-nvtx", ["License: Apache 2.0", "Classifier: License :: Other/Proprietary License"]),
    ],
)
def test_the_packages_of_torch_for_cuda_have_allowed_licences(tmp_path: Path, name: str, fields: list[str]) -> None:
    """Their metadata as of torch 2.13; on Linux ``pip install`` brings them unless another index is named."""
    assert list(refusals([put(tmp_path, name, *fields)], Rules.open())) == []


def test_every_package_of_this_project_is_pinned_and_has_an_allowed_licence() -> None:
    from packaging.utils import canonicalize_name

    from supply.audit import pinned

    packages = needed(ROOT, ["cpu", "minilm", "dev"])
    assert [str(one) for one in refusals(packages, Rules.open())] == []
    assert unused(packages, Rules.open()) == []
    pins = {canonicalize_name(line.split("==")[0]) for line in pinned(ROOT / "constraints.txt")}
    tools = {"pip", "setuptools"}  # of the environment itself
    gpu = {
        one for one in {canonicalize_name(p.name) for p in packages} if one.startswith(("nvidia-", "cuda-", "triton"))
    }
    assert {canonicalize_name(one.name) for one in packages} - tools - gpu <= pins
