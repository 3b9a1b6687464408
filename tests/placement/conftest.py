"""Clusters that all tests of placements share end with the last of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.placement.ray_cluster import RayCluster


@pytest.fixture(scope="package", autouse=True)
def clusters() -> Iterator[None]:
    yield
    RayCluster.end_shared()
