import os
from pathlib import Path

# Before numpy is imported anywhere: the tests run in several processes, and each must not take every core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest
from hypothesis import HealthCheck, settings

# One profile for people and CI: no deadline (machines are shared), and derandomised so that a test never flickers.
settings.register_profile("daband", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("daband")


@pytest.fixture(scope="session")
def real_data():
    """The folder with the real data sets, where there is one."""
    places = [os.environ.get("DABAND_DATA"), Path(__file__).parents[2] / "shared" / "data"]
    for place in places:
        if place and (Path(place) / "mnist").is_dir():
            return Path(place)
    pytest.skip("no real data: set DABAND_DATA to a folder with the data sets (see docs/data.md)")
