import os
import signal
from pathlib import Path

# Before numpy is imported anywhere: the tests run in several processes, and each must not take
# every core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest
from hypothesis import HealthCheck, settings

from tests import rounding

# One profile for people and CI: no deadline (machines are shared), and derandomised so that a test
# never flickers.
settings.register_profile(
    "daband", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("daband")

_DATA = os.environ.get("DABAND_DATA")


def pytest_configure(config):
    # a shell starts background jobs so; tests send the signal
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers",
        "exact_contexts: a module or test whose contexts must not be nudged, for it calculates from"
        " them",
    )
    if os.environ.get("DABAND_TEST_MKLDNN") == "0":
        rounding.without_mkldnn()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests on real data are slow ones."""
    for item in items:
        if "real_data" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def real_data():
    """The folder with the real data sets, where there is one: DABAND_DATA, as it was when the tests
    began.
    """
    if _DATA and (Path(_DATA) / "mnist").is_dir():
        return Path(_DATA)
    pytest.skip(
        "no real data: set DABAND_DATA to a folder with the data sets (see docs/guide/data.md)"
    )


@pytest.fixture(autouse=True, scope="module")
def _nudge(request):
    """Nudges contexts where the environment asks for it, in every module but those marked
    ``exact_contexts``.
    """
    seed = rounding.seed_of_nudge()
    if seed is None or request.node.get_closest_marker("exact_contexts"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        rounding.nudge(patch, seed)
        yield


@pytest.fixture(autouse=True)
def _exact_contexts(request, monkeypatch):
    """A single test that is marked ``exact_contexts`` gets its contexts as they are."""
    if request.node.get_closest_marker("exact_contexts"):
        monkeypatch.setattr(rounding, "RELATIVE", 0.0)
