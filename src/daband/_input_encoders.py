"""Frozen encoders of images and texts: an ONNX program with its preprocessing, run by onnxruntime without torch.

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

#: Rows that are encoded together.
_ROWS = 64
#: The inputs of text encoders, and the attribute of a tokenized text that has the values of each.
TOKEN_PARTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
#: Seconds after which the progress of a column is shown on a terminal.
_SHOWN_AFTER = 2.0


@dataclass(frozen=True)
class Pixels:
    """Turns an image file into the input of an encoder, (3, crop, crop).

    The shorter side is resized to ``resize``, or both sides if ``squash``. Then the centre is cropped, and pixels in
    [0, 1] are standardised by the channels' ``mean`` and ``deviation``.
    """

    resize: int
    crop: int
    squash: bool = False
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
        """Return the input for the bytes of an image file."""
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
        try:
            import onnxruntime
        except ImportError:
            raise InvalidInput("the encoder is run by onnxruntime: pip install 'daband[onnx]'") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # log only fatal errors: other errors are raised
        threads = os.environ.get("OMP_NUM_THREADS", "")
        options.intra_op_num_threads = int(threads) if threads.isdigit() else 0
        try:
            return onnxruntime.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has an error class for each kind of defect
            raise InvalidInput(f"this is not an ONNX program that onnxruntime can run: {error}") from None

    @property
    def inputs(self) -> list[tuple[str, list[Any]]]:
        """The name and shape of each input."""
        return [(one.name, one.shape) for one in self._session.get_inputs()]

    def __call__(self, *arrays: AnyArray) -> AnyArray:
        """Return the output for these inputs, each (n, ...), as floating-point numbers."""
        names = [name for name, _ in self.inputs]
        step = 1 if self.single else _ROWS
        if len(arrays[0]) > step:
            starts = range(0, len(arrays[0]), step)
            return np.concatenate([self(*(array[at : at + step] for array in arrays)) for at in starts])
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
        self.width = self._run(probe).shape[1]

    def one(self, value: Any) -> FloatArray:
        """Return the features (width,) of an image (bytes, base64 or a path) or a text."""
        return self._run([self._input(self._content(value))])[0]

    def column(self, values: Sequence[Any], where: Callable[[int], str]) -> FloatArray:
        """Return the features (n, width) of many values, from the cache if they are there. ``where`` names a row."""

        def read(row: int, use: Callable[[bytes], Any]) -> Any:
            try:
                return use(self._content(values[row]))
            except InvalidInput as error:
                raise DataError(f"{where(row)}: {error}") from None

        started = time.monotonic()
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # Pillow releases the interpreter lock while it decodes
            # Files are read twice, for the hash and for the features, so that memory does not have to hold all of them.
            keys = list(pool.map(lambda row: read(row, _hash), range(len(values))))
            first = {key: row for row, key in reversed(list(enumerate(keys)))}
            known = self._cached(list(first))
            missing = sorted(row for key, row in first.items() if key not in known)
            for start in range(0, len(missing), _ROWS):
                rows = missing[start : start + _ROWS]
                features = self._run(list(pool.map(lambda row: read(row, self._input), rows)))
                new = {keys[row]: one for row, one in zip(rows, features, strict=True)}
                known |= new
                self._store(new)
                _show_progress(self.name, start + len(rows), len(missing), started)
        return np.stack([known[key] for key in keys])

    def _content(self, value: Any) -> bytes:
        if self.takes == "text":
            if not isinstance(value, str | None):
                raise InvalidInput(f"a text is needed, got {value!r}")
            return (value or "").encode()
        return image_bytes(value)

    def _input(self, content: bytes) -> Any:
        if self.pixels is None:
            return content.decode()
        with image_errors("this"):
            return self.pixels.read(content)

    def _run(self, inputs: list[Any]) -> FloatArray:
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
        rest = json.dumps([{**self.state(), "name": None}, self.tokenizer], sort_keys=True)
        return hashlib.sha256(self.program.content + rest.encode()).hexdigest()[:32]

    @property
    def _cache(self) -> Path:
        return cache_directory() / "features" / f"{self.digest}.sqlite"

    def _cached(self, keys: list[bytes]) -> dict[bytes, FloatArray]:
        found: dict[bytes, FloatArray] = {}
        if not self._cache.is_file():
            return found
        try:
            with contextlib.closing(sqlite3.connect(self._cache)) as store:
                for key in keys:
                    for (features,) in store.execute("SELECT value FROM features WHERE key = ?", (key,)):
                        found[key] = np.frombuffer(features, np.float32).astype(np.float64)
        except (OSError, sqlite3.Error):
            return {}  # if the cache is damaged or locked, features are computed again
        return {key: features for key, features in found.items() if features.shape == (self.width,)}

    def _store(self, features: Mapping[bytes, FloatArray]) -> None:
        try:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._cache, timeout=30)) as store, store:
                store.execute("CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB)")
                rows = [(key, one.astype(np.float32).tobytes()) for key, one in features.items()]
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
    return hashlib.blake2b(content, digest_size=16).digest()


def token_arrays(tokenizer: Any, texts: Sequence[str]) -> dict[str, AnyArray]:
    """Return the inputs (n, length) of a text encoder by name."""
    encoded = tokenizer.encode_batch(list(texts))
    return {name: np.array([getattr(one, part) for one in encoded], np.int64) for name, part in TOKEN_PARTS.items()}


def _show_progress(name: str, done: int, total: int, started: float) -> None:
    """Write a line to a terminal if encoding takes long."""
    seconds = time.monotonic() - started
    if seconds < _SHOWN_AFTER or not sys.stderr.isatty():
        return
    bar = "#" * (30 * done // total)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{name} [{bar:30}] {done:,} of {total:,}, {seconds * (total - done) / done:,.0f} s left {end}")
    sys.stderr.flush()


#: Functions that convert a named model or a module, added when the package that provides them is imported.
encoder_builders: list[Callable[[Any, tuple[int, int] | None], InputEncoder]] = []


def input_encoder(given: Any, framing: tuple[int, int] | None = None) -> InputEncoder:
    """Return the encoder that a user names.

    ``given`` is an ``InputEncoder``, a name such as "timm:resnet18", a ``torch.nn.Module``, or a path: of a module that
    ``torch.save`` wrote, of an ONNX file, or of a folder with model.onnx and tokenizer.json. ``framing`` has the
    two sizes in pixels to which images are resized and then cropped, for a module or an ONNX file; a named model has
    its own.
    """
    if isinstance(given, InputEncoder):
        return given
    path = Path(given) if isinstance(given, str | os.PathLike) else None
    if path is not None and path.suffix == ".onnx":
        if not path.is_file():
            raise InvalidInput(f"encoder {given} is not there")
        program = OnnxProgram(path.read_bytes())
        side = program.inputs[0][1][-1]
        framing = framing or ((side, side) if isinstance(side, int) else (224, 224))
        return InputEncoder(path.name, program, pixels=Pixels(*framing, squash=True))
    if path is not None and (path / "model.onnx").is_file():
        if not (path / "tokenizer.json").is_file():
            raise InvalidInput(f"encoder {given} has no tokenizer.json next to model.onnx")
        content, tokenizer = (path / "model.onnx").read_bytes(), (path / "tokenizer.json").read_text()
        return InputEncoder(path.name, OnnxProgram(content), tokenizer=tokenizer)
    try:
        for name in () if encoder_builders else sys.modules["daband"].PLUGINS:
            importlib.import_module(name)
    except ImportError as error:
        raise InvalidInput(
            f"encoder {given!r} is converted by torch: pip install 'daband[deep]' ({error}); "
            "an .onnx file does not need torch"
        ) from None
    return encoder_builders[-1](given, framing)
