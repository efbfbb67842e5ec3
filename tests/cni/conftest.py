"""The shim, as it is shipped and under sanitizers, and the path of an agent's socket."""

from pathlib import Path

import pytest

from tests.cni.shim import SANITIZED, build


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim as it is shipped."""
    return build(tmp_path_factory.mktemp("shim") / "pointsman-cni")


@pytest.fixture(scope="session", params=["packaged", "sanitized"])
def shim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, packaged: Path) -> Path:
    if request.param == "packaged":
        return packaged
    return build(tmp_path_factory.mktemp("sanitized") / "pointsman-cni", SANITIZED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cni.sock"
