import numpy as np
import pytest


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """No test reads or writes the folders of the person who runs it."""
    monkeypatch.setenv("DABAND_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DABAND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture
def shared_data(real_data, monkeypatch):
    """The real data, where there are any, in the place that the library looks at."""
    monkeypatch.setenv("DABAND_DATA", str(real_data))
    return real_data


@pytest.fixture
def write_images():
    """Write random images of different sizes into a folder, one sub-folder a class."""
    from PIL import Image

    def write(folder, classes, per_class, *, seed=0, suffix=".png", size=None):
        generator = np.random.default_rng(seed)
        for name in classes:
            (folder / name).mkdir(parents=True, exist_ok=True)
            for number in range(per_class):
                height, width = size or generator.integers(20, 60, size=2)
                pixels = generator.integers(0, 256, size=(height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{name}_{number:03d}{suffix}")

    return write
