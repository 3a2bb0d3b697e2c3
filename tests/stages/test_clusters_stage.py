"""The stage clusters: where its vectors are clustered, and what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.card import CARD
from tests.cluster.points import mixture
from xc_core.artifacts import building
from xc_core.cluster import Clusters, balanced, cohesion, on_card
from xc_core.devices import Device
from xc_core.recipes.settings import ClustersSettings
from xc_core.stages import clusters


class Inputs:
    """The context of a run on 130 documents, of which the last ten are test documents."""

    def __init__(self, build: Any) -> None:
        self.build, self.settings = build, ClustersSettings(size=10)
        self.documents_ND, _ = mixture(3, 130, 8, 12, 0.02)
        self.lines: list[str] = []
        self.report = self.lines.append

    def read(self, kind: type) -> Any:
        return self

    def published_rows(self) -> Any:
        return np.arange(120)


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("device", [None, CARD])
def test_documents_are_clustered_on_the_chosen_device(
    device: Device | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.device] = []
    ordered = on_card.ordered
    monkeypatch.setattr(balanced, "ordered", lambda points, *rest: seen.append(points.device) or ordered(points, *rest))
    if device is not None:
        monkeypatch.setattr(Device, "chosen", lambda: device)
    with building(tmp_path / "clusters", kind="clusters") as build:
        inputs = Inputs(build)
        clusters.run(inputs)  # type: ignore[arg-type]
    found = Clusters.open(tmp_path / "clusters")
    assert seen == ([] if device is None else [CARD.torch])
    assert found.rows_N.tolist() == list(range(120))
    assert sorted(found.order_N.tolist()) == list(range(120))
    assert found.sizes.tolist() == [10] * 12
    assert inputs.lines == [f"clusters: 12 of 10 to 10 documents, cohesion {build.facts['cohesion']:.3f}"]
    assert build.facts["cohesion"] == pytest.approx(cohesion(inputs.documents_ND[:120], found.order_N, found.sizes))


def test_the_seed_of_the_settings_decides_the_clusters(tmp_path: Path) -> None:
    orders: list[list[int]] = []
    for number, seed in enumerate((0, 0, 1)):
        with building(tmp_path / str(number), kind="clusters") as build:
            inputs = Inputs(build)
            inputs.settings = ClustersSettings(size=10, seed=seed)
            clusters.run(inputs)  # type: ignore[arg-type]
        orders.append(Clusters.open(tmp_path / str(number)).order_N.tolist())
    assert orders[0] == orders[1] != orders[2]
