"""Maps on the CUDA kernel: the models of tests/record/bulk_models.py, as on `cpu`, and race-free."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from tests.record.bulk_models import NETWORKS, Network

pytestmark = pytest.mark.simt


def check(network: Network) -> None:
    """Loss, gradients, values and gradients of inputs are those of the cpu target."""
    model, cells, p = network.make()
    graph = vpps.Graph()
    rows = network.bulk(graph, cells, p, network.data(np.random.default_rng(5), 2))
    found = []
    for options in ({"vps": 3}, {"target": "cpu", "vps": 1}):
        with vpps.Handle(model, **options) as handle:
            loss, gradients = handle.gradients(graph, rows.loss)
            arrays = {f"gradient of {name}": g for name, g in gradients.items()}
            arrays |= {f"values {k}": handle.value(v) for k, v in enumerate(rows.values)}
            if rows.inputs is not None:
                arrays["inputs"] = handle.input_gradient(rows.inputs)
            found.append((loss, arrays))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name, expected in found[1][1].items():
        assert relative_error(found[0][1][name], expected) < 1e-5, name


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_maps_follow_the_cpu(network: Network) -> None:
    check(network)


@pytest.mark.usefixtures("roomy_kernels")
@pytest.mark.parametrize("name", ["two kinds", "child-sum"])
def test_maps_with_weights_in_slots_follow_the_cpu(name: str) -> None:
    check(NETWORKS[name])
