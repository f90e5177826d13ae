"""Run frozen encoders of images and texts: ONNX programs with their preprocessing, without torch.

``daband.neural`` converts named models and modules to such programs (``encoder_builders``). Features of a whole column
are cached. Each encoder has a file below the cache folder, in which the key is a hash of the image or text.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray
from daband._files import cache_directory
from daband._image_layout import image_bytes, image_errors, open_rgb
from daband.errors import DataError, InvalidInput

#: The number of rows that are encoded together.
_BATCH_ROWS = 64
#: The inputs of text encoders, and the attribute of a tokenized text that has the values of each.
TOKEN_PARTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
#: Seconds after which the progress of a column is shown on a terminal.
_PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class Pixels:
    """The preprocessing that converts an image file to the input of an encoder, (3, crop, crop).

    The shorter side is resized to ``resize``, or both sides if ``squash``. Then the centre is cropped, and pixels in
    [0, 1] are standardised by the channels' ``mean`` and ``deviation``.
    """

    #: The side in pixels after resizing.
    resize: int
    #: The side in pixels after cropping.
    crop: int
    #: True if both sides are resized to ``resize``, which changes the aspect ratio.
    squash: bool = False
    #: "bilinear" or "bicubic".
    interpolation: str = "bilinear"
    mean: Sequence[float] = (0.0, 0.0, 0.0)
    deviation: Sequence[float] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.resize <= 1 << 14 or self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(
                f"resize={self.resize}, crop={self.crop} and interpolation={self.interpolation!r} do not fit: crop "
                "must be 1 to resize, resize at most 16,384, and interpolation bilinear or bicubic"
            )
        if len(self.mean) != 3 or len(self.deviation) != 3 or not min(self.deviation) > 0:
            raise ValueError(
                f"mean and deviation need 3 numbers each, the latter above 0, got {self.mean} and {self.deviation}"
            )

    def read(self, content: bytes) -> AnyArray:
        """Return the input (3, crop, crop) for the bytes of an image file."""
        image = open_rgb(io.BytesIO(content))
        shorter = min(image.size)
        sides = tuple(self.resize if self.squash else self.resize * side // shorter for side in image.size)
        if image.size != sides:
            from PIL import Image

            image = image.resize(sides, Image.Resampling[self.interpolation.upper()])
        left, top = (round((side - self.crop) / 2) for side in image.size)
        pixels: AnyArray = np.asarray(image, np.float32)[top : top + self.crop, left : left + self.crop] / np.float32(
            255.0
        )
        pixels = (pixels - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))


class OnnxProgram:
    """An ONNX program with one output, (n, ...). onnxruntime is imported when the program is first used."""

    def __init__(self, content: bytes, *, single: bool = False) -> None:
        self.content = content
        #: True if the program takes one row at a time.
        self.single = single

    @functools.cached_property
    def _session(self) -> Any:
        """The session of onnxruntime."""
        try:
            import onnxruntime
        except ImportError:
            raise InvalidInput("encoder needs onnxruntime: pip install 'daband[onnx]'") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # log only fatal errors: other errors are raised
        threads = os.environ.get("OMP_NUM_THREADS", "")
        options.intra_op_num_threads = int(threads) if threads.isdigit() else 0
        try:
            return onnxruntime.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has an error class for each kind of defect
            raise InvalidInput(f"encoder must be an ONNX program that onnxruntime can run: {error}") from None

    @property
    def inputs(self) -> list[tuple[str, list[Any]]]:
        """The name and shape of each input."""
        return [(model_input.name, model_input.shape) for model_input in self._session.get_inputs()]

    def __call__(self, *arrays: AnyArray) -> AnyArray:
        """Return the output for these inputs, each (n, ...), as floating-point numbers."""
        names = [name for name, _ in self.inputs]
        step = 1 if self.single else _BATCH_ROWS
        if len(arrays[0]) > step:
            starts = range(0, len(arrays[0]), step)
            return np.concatenate([self(*(array[start : start + step] for array in arrays)) for start in starts])
        return self._session.run(None, dict(zip(names, arrays, strict=True)))[0]

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content, "single": self.single}


class InputEncoder:
    """A frozen encoder of images, if ``pixels`` is given, or of texts, if ``tokenizer`` is given as JSON.

    ``name`` describes it in messages. ``width`` is the number of features.
    """

    def __init__(
        self, name: str, program: OnnxProgram, *, pixels: Pixels | None = None, tokenizer: str | None = None
    ) -> None:
        if (pixels is None) == (tokenizer is None):
            raise ValueError("an encoder needs either pixels (for images) or a tokenizer (for texts)")
        self.name, self.program, self.pixels, self.tokenizer = name, program, pixels, tokenizer
        self.takes = "image" if tokenizer is None else "text"
        probe = [""] if pixels is None else [np.zeros((3, pixels.crop, pixels.crop), np.float32)]
        self.width = self._encode_inputs(probe).shape[1]

    def one(self, value: Any) -> FloatArray:
        """Return the features (width,) of an image (bytes, base64 or a path) or a text."""
        return self._encode_inputs([self._to_input(self._to_bytes(value))])[0]

    def column(self, values: Sequence[Any], where: Callable[[int], str]) -> FloatArray:
        """Return the features (n, width) of many values, using the cache. ``where(row)`` names a row in errors."""

        def read(row: int, use: Callable[[bytes], Any]) -> Any:
            try:
                return use(self._to_bytes(values[row]))
            except InvalidInput as error:
                raise DataError(f"{where(row)}: {error}") from None

        started = time.monotonic()
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # Pillow releases the interpreter lock while it decodes
            # Files are read twice, for the hash and for the features, so that memory does not have to hold all of them.
            keys = list(pool.map(lambda row: read(row, _hash), range(len(values))))
            first_rows = {key: row for row, key in reversed(list(enumerate(keys)))}
            features_by_key = self._read_cache(list(first_rows))
            missing = sorted(row for key, row in first_rows.items() if key not in features_by_key)
            for start in range(0, len(missing), _BATCH_ROWS):
                rows = missing[start : start + _BATCH_ROWS]
                features = self._encode_inputs(list(pool.map(lambda row: read(row, self._to_input), rows)))
                encoded = {keys[row]: row_features for row, row_features in zip(rows, features, strict=True)}
                features_by_key |= encoded
                self._write_cache(encoded)
                _show_progress(self.name, start + len(rows), len(missing), started)
        return np.stack([features_by_key[key] for key in keys])

    def _to_bytes(self, value: Any) -> bytes:
        """Return the bytes of an image file or a text."""
        if self.takes == "text":
            if not isinstance(value, str | None):
                raise InvalidInput(f"a text must be a string, got {value!r}")
            return (value or "").encode()
        return image_bytes(value)

    def _to_input(self, content: bytes) -> Any:
        """Return the input of the encoder for these bytes."""
        if self.pixels is None:
            return content.decode()
        with image_errors("this"):
            return self.pixels.read(content)

    def _encode_inputs(self, inputs: list[Any]) -> FloatArray:
        """Return the features (n, width) of inputs."""
        if self.pixels is not None:
            features = self.program(np.stack(inputs)).reshape(len(inputs), -1)
        else:
            tokens = token_arrays(self._tokenizer, inputs)
            features = self.program(*(tokens[name] for name, _ in self.program.inputs))
            if features.ndim == 3:  # one vector per token
                weights = tokens["attention_mask"][:, :, None].astype(np.float64)
                features = (features * weights).sum(axis=1) / np.maximum(
                    weights.sum(axis=1), 1.0
                )  # a text may have no token
        return features.astype(np.float32).astype(np.float64)  # rounded, as in the cache

    @functools.cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer of texts."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InvalidInput("encoders of texts need the package tokenizers: pip install 'daband[onnx]'") from None
        tokenizer = Tokenizer.from_str(str(self.tokenizer))
        if tokenizer.padding is None:
            tokenizer.enable_padding()
        return tokenizer

    # Features on disk.

    @functools.cached_property
    def digest(self) -> str:
        """A hash of everything that determines the features."""
        settings = json.dumps([{**self.state(), "name": None}, self.tokenizer], sort_keys=True)
        return hashlib.sha256(self.program.content + settings.encode()).hexdigest()[:32]

    @property
    def _cache_path(self) -> Path:
        """The file of cached features."""
        return cache_directory() / "features" / f"{self.digest}.sqlite"

    def _read_cache(self, keys: list[bytes]) -> dict[bytes, FloatArray]:
        """Return the cached features for these keys."""
        cached: dict[bytes, FloatArray] = {}
        if not self._cache_path.is_file():
            return cached
        try:
            with contextlib.closing(sqlite3.connect(self._cache_path)) as store:
                for key in keys:
                    for (features,) in store.execute("SELECT value FROM features WHERE key = ?", (key,)):
                        cached[key] = np.frombuffer(features, np.float32).astype(np.float64)
        except (OSError, sqlite3.Error):
            return {}  # if the cache is damaged or locked, features are computed again
        return {key: features for key, features in cached.items() if features.shape == (self.width,)}

    def _write_cache(self, features: Mapping[bytes, FloatArray]) -> None:
        """Add features to the cache, if it can be written."""
        try:
            self._cache_path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._cache_path, timeout=30)) as store, store:
                store.execute("CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB)")
                rows = [(key, row_features.astype(np.float32).tobytes()) for key, row_features in features.items()]
                store.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)
        except (OSError, sqlite3.Error):
            return

    # Files.

    def state(self) -> dict[str, Any]:
        """Return the settings in JSON types; ``arrays`` has the rest."""
        pixels = None if self.pixels is None else asdict(self.pixels)
        return {"name": self.name, "single": self.program.single, "pixels": pixels}

    def arrays(self) -> dict[str, AnyArray]:
        """Return the program, and the tokenizer if there is one, as bytes."""
        arrays = {"program": np.frombuffer(self.program.content, np.uint8)}
        if self.tokenizer is not None:
            arrays["tokenizer"] = np.frombuffer(self.tokenizer.encode(), np.uint8)
        return arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> InputEncoder:
        """Return the encoder with this ``state`` and these ``arrays``."""
        pixels = None if state["pixels"] is None else Pixels(**state["pixels"])
        tokenizer = bytes(arrays["tokenizer"]).decode() if "tokenizer" in arrays else None
        program = OnnxProgram(bytes(arrays["program"]), single=bool(state["single"]))
        return cls(str(state["name"]), program, pixels=pixels, tokenizer=tokenizer)


def _hash(content: bytes) -> bytes:
    """Return the key of an image or a text in the cache."""
    return hashlib.blake2b(content, digest_size=16).digest()


def token_arrays(tokenizer: Any, texts: Sequence[str]) -> dict[str, AnyArray]:
    """Return the inputs of a text encoder by name, (n, length) each, with texts padded to the same length."""
    encoded = tokenizer.encode_batch(list(texts))
    return {name: np.array([getattr(text, field) for text in encoded], np.int64) for name, field in TOKEN_PARTS.items()}


def _show_progress(name: str, done: int, total: int, started: float) -> None:
    """Show a progress bar on a terminal, after the first two seconds. ``started`` is a time of ``time.monotonic``."""
    seconds = time.monotonic() - started
    if seconds < _PROGRESS_SECONDS or not sys.stderr.isatty():
        return
    bar = "#" * (30 * done // total)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{name} [{bar:30}] {done:,} of {total:,}, {seconds * (total - done) / done:,.0f} s left {end}")
    sys.stderr.flush()


#: Functions that convert a named model or a module, added when the package that provides them is imported.
encoder_builders: list[Callable[[Any, tuple[int, int] | None], InputEncoder]] = []


def input_encoder(encoder: Any, framing: tuple[int, int] | None = None) -> InputEncoder:
    """Return the encoder for the argument ``encoder`` of a reader.

    ``encoder`` is an ``InputEncoder``, a name such as "timm:resnet18", a ``torch.nn.Module``, or a path. The path is a
    module written by ``torch.save``, an ONNX file, or a folder with model.onnx and tokenizer.json. ``framing`` has the
    sizes in pixels to which images are resized and then cropped, for a module or an ONNX file. Named models have their
    own sizes.
    """
    if isinstance(encoder, InputEncoder):
        return encoder
    path = Path(encoder) if isinstance(encoder, str | os.PathLike) else None
    if path is not None and path.suffix == ".onnx":
        if not path.is_file():
            raise InvalidInput(f"encoder {encoder} does not exist")
        program = OnnxProgram(path.read_bytes())
        side = program.inputs[0][1][-1]
        framing = framing or ((side, side) if isinstance(side, int) else (224, 224))
        return InputEncoder(path.name, program, pixels=Pixels(*framing, squash=True))
    if path is not None and (path / "model.onnx").is_file():
        if not (path / "tokenizer.json").is_file():
            raise InvalidInput(f"encoder {encoder} has no tokenizer.json next to model.onnx")
        content, tokenizer = (path / "model.onnx").read_bytes(), (path / "tokenizer.json").read_text()
        return InputEncoder(path.name, OnnxProgram(content), tokenizer=tokenizer)
    try:
        for name in () if encoder_builders else sys.modules["daband"].PLUGINS:
            importlib.import_module(name)
    except ImportError as error:
        raise InvalidInput(
            f"encoder {encoder!r} is converted by torch: pip install 'daband[deep]' ({error}); "
            "an .onnx file does not need torch"
        ) from None
    return encoder_builders[-1](encoder, framing)
