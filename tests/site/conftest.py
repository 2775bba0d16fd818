"""What the tests of the simulated cluster share."""

import os
from collections.abc import Iterator

import pytest

from tests.site import client


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """The simulated cluster, up and healthy."""
    if os.geteuid() != 0:
        pytest.skip("the simulated cluster needs root")
    done = client.site("up", seconds=3000)
    assert done.returncode == 0, done.stderr
    yield
    client.remove_outputs()
