"""Images in requests: how large they may be, and where they are decoded."""

import asyncio
import base64
import io
import threading

import pytest
from PIL import Image
from torch import nn

import daband
from daband.features._input_encoders import InputEncoder
from tests.service.conftest import served


def encode(size, file_format="PNG", mode="L"):
    file = io.BytesIO()
    Image.new(mode, size).save(file, file_format)
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture
def image_file(tmp_path):
    for folder in ("drawn", "photos"):
        for number in range(24):
            path = tmp_path / folder / ("cat", "dog")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (10 * number, 200 * (number % 2), 0)).save(path)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    pair = daband.domains.from_images(
        source=tmp_path / "drawn", target=tmp_path / "photos", encoder=network, framing=16
    )
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=8)
    daband.export(policy, tmp_path / "images.daband", pair=pair, domain="target")
    return tmp_path / "images.daband"


def test_images_are_limited_and_decoded_in_another_thread(image_file, sqlite_log, monkeypatch):
    threads = []
    encode_one = InputEncoder.encode_one

    def record_thread(self, value):
        with pytest.raises(RuntimeError):  # not the thread of the event loop
            asyncio.get_running_loop()
        threads.append(threading.current_thread())
        return encode_one(self, value)

    monkeypatch.setattr(InputEncoder, "encode_one", record_thread)
    bomb = encode((13_000, 13_000))
    assert len(bomb) < 1_000_000
    large = {"context": {"image": encode((2000, 2000), mode="RGB")}}
    with served(image_file, sqlite_log) as client:
        for body, message in (
            ({"context": {"image": bomb}}, "pixels"),
            ({"context": {"image": encode((5000, 1))}}, "16 times"),
            ({"events": [large] * 5}, "16,777,216 pixels"),
            ({"context": {"image": "data:image/tiff;base64," + encode((8, 8), "TIFF")}}, "image"),
            ({"context": {"image": "iVBORw0KGgo" + "A" * 40}}, "image"),
        ):
            answer = client.post("/decide", json=body)
            assert answer.status_code == 422
            assert message in answer.json()["error"]
        assert threads == []
        assert client.post("/decide", json=large).status_code == 200
    assert len(threads) == 1
