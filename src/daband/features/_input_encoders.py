"""Run frozen encoders of images and texts without torch: ONNX programs with their preprocessing.

``as_input_encoder`` returns an ``InputEncoder``, which has an ``OnnxProgram`` and an
``ImageReader`` or a tokenizer. ``daband.neural`` converts named models and modules to such programs
by ``encoder_builders``.

The features of columns are cached on disk. Each encoder has an SQLite file in the cache folder,
with the features of an image or a text under the hash of its bytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, Arrays, FloatArray
from daband.base._files import get_cache_directory
from daband.base._registry import import_neural
from daband.errors import DataError, InvalidInput
from daband.features._image_layout import convert_image_errors, open_rgb, read_image_bytes

#: The number of rows that are encoded together.
_BATCH_ROWS = 64
#: For each input of a text encoder, the attribute of a tokenized text that has the values of this
#: input.
TOKEN_ATTRIBUTES = {
    "input_ids": "ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "type_ids",
}


@dataclass(frozen=True)
class ImageReader:
    """The preprocessing that converts an image file to the input of an encoder, (3, crop, crop).

    The shorter side is resized to ``resize``, or both sides with ``squash``. Then the centre is
    cropped. Pixels are scaled to [0, 1], minus the ``mean`` of their channel, divided by its
    standard deviation ``deviation``.
    """

    #: The side in pixels after resizing.
    resize: int
    #: The side in pixels after cropping.
    crop: int
    #: If True, both sides are resized to ``resize``, which changes the aspect ratio.
    squash: bool = False
    #: The interpolation when resizing, "bilinear" or "bicubic".
    interpolation: str = "bilinear"
    #: The mean of each channel.
    mean: Sequence[float] = (0.0, 0.0, 0.0)
    #: The standard deviation of each channel.
    deviation: Sequence[float] = (1.0, 1.0, 1.0)

    def read(self, content: bytes) -> AnyArray:
        """Return the input (3, crop, crop) for the bytes of an image file."""
        image = open_rgb(io.BytesIO(content))
        shorter_side = min(image.size)
        sides = tuple(
            self.resize if self.squash else self.resize * side // shorter_side
            for side in image.size
        )
        if image.size != sides:
            from PIL import Image

            image = image.resize(sides, Image.Resampling[self.interpolation.upper()])
        left, top = (round((side - self.crop) / 2) for side in image.size)
        pixels: AnyArray = np.asarray(image, np.float32)[
            top : top + self.crop, left : left + self.crop
        ]
        pixels = pixels / np.float32(255.0) - np.array(self.mean, np.float32)
        pixels /= np.array(self.deviation, np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))


class OnnxProgram:
    """An ONNX program with one output, (n, ...). onnxruntime is imported when the program is first
    used.

    Args:
        content: the bytes of the ONNX file.
        is_single_row: True if the program can process only one row at a time.
    """

    def __init__(self, content: bytes, *, is_single_row: bool = False) -> None:
        self.content = content
        self.is_single_row = is_single_row

    @functools.cached_property
    def _session(self) -> Any:
        """The session of onnxruntime."""
        try:
            import onnxruntime
        except ImportError:
            raise InvalidInput("encoder needs onnxruntime: pip install 'daband[onnx]'") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # only fatal errors: other errors are raised
        n_threads = os.environ.get("OMP_NUM_THREADS", "")
        options.intra_op_num_threads = int(n_threads) if n_threads.isdigit() else 0
        try:
            return onnxruntime.InferenceSession(
                self.content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has an error class for each kind of defect
            raise InvalidInput(
                f"encoder must be an ONNX program that onnxruntime can run: {error}"
            ) from None

    @property
    def inputs(self) -> list[tuple[str, list[Any]]]:
        """The name and shape of each input."""
        return [(model_input.name, model_input.shape) for model_input in self._session.get_inputs()]

    def __call__(self, *arrays: AnyArray) -> AnyArray:
        """Return the output (n, ...) for the arrays of all inputs, each (n, ...), as floating-point
        numbers.
        """
        names = [name for name, _ in self.inputs]
        max_rows = 1 if self.is_single_row else _BATCH_ROWS
        if len(arrays[0]) > max_rows:
            starts = range(0, len(arrays[0]), max_rows)
            return np.concatenate(
                [self(*(array[start : start + max_rows] for array in arrays)) for start in starts]
            )
        return self._session.run(None, dict(zip(names, arrays, strict=True)))[0]

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content, "is_single_row": self.is_single_row}


class InputEncoder:
    """A frozen encoder of images or texts.

    Args:
        name: the name of the encoder in messages.
        program: the ONNX program that computes features from inputs.
        image_reader: the preprocessing of images; None for an encoder of texts.
        tokenizer: the tokenizer of texts as JSON; None for an encoder of images.

    Attributes:
        input_kind: "image" or "text".
        n_features: the number of features.
    """

    def __init__(
        self,
        name: str,
        program: OnnxProgram,
        *,
        image_reader: ImageReader | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self.name = name
        self.program = program
        self.image_reader = image_reader
        self.tokenizer = tokenizer
        self.input_kind = "image" if tokenizer is None else "text"
        side = 1 if image_reader is None else image_reader.crop
        example_input = "" if image_reader is None else np.zeros((3, side, side), np.float32)
        self.n_features = self._encode_inputs([example_input]).shape[1]

    def encode_one(self, value: Any) -> FloatArray:
        """Return the features (n_features,) of one image (bytes, base64 or a path) or text."""
        return self._encode_inputs([self._to_input(self._to_bytes(value))])[0]

    def encode_column(
        self, values: Sequence[Any], describe_row: Callable[[int], str]
    ) -> FloatArray:
        """Return the features (n, n_features) of many images or texts, from the cache if possible.

        ``describe_row(row)`` returns the start of the error message about a row.
        """

        def apply_to_bytes(row: int, function: Callable[[bytes], Any]) -> Any:
            try:
                return function(self._to_bytes(values[row]))
            except InvalidInput as error:
                raise DataError(f"{describe_row(row)}: {error}") from None

        # Pillow releases the interpreter lock while it decodes
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            # Files are read twice, for the hash and for the features, so that memory does not have
            # to hold all of them.
            keys = list(
                pool.map(lambda row: apply_to_bytes(row, _make_cache_key), range(len(values)))
            )
            first_rows = {key: row for row, key in reversed(list(enumerate(keys)))}
            features_by_key = self._read_cache(list(first_rows))
            uncached_rows = sorted(
                row for key, row in first_rows.items() if key not in features_by_key
            )
            for start in range(0, len(uncached_rows), _BATCH_ROWS):
                rows = uncached_rows[start : start + _BATCH_ROWS]
                inputs = list(pool.map(lambda row: apply_to_bytes(row, self._to_input), rows))
                features = self._encode_inputs(inputs)
                new_features = {
                    keys[row]: row_features
                    for row, row_features in zip(rows, features, strict=True)
                }
                features_by_key |= new_features
                self._write_cache(new_features)
        return np.stack([features_by_key[key] for key in keys])

    def _to_bytes(self, value: Any) -> bytes:
        """Return the bytes of an image file, or of a text in UTF-8."""
        if self.input_kind == "text":
            if not isinstance(value, str | None):
                raise InvalidInput(f"a text must be a string, got {value!r}")
            return (value or "").encode()
        return read_image_bytes(value)

    def _to_input(self, content: bytes) -> Any:
        """Return the input for the bytes of an image or text: an array (3, crop, crop), or a
        string.
        """
        if self.image_reader is None:
            return content.decode()
        with convert_image_errors("this"):
            return self.image_reader.read(content)

    def _encode_inputs(self, inputs: list[Any]) -> FloatArray:
        """Return the features (n, n_features) of n results of ``_to_input``."""
        if self.image_reader is not None:
            features = self.program(np.stack(inputs)).reshape(len(inputs), -1)
        else:
            tokens = tokenize_texts(self._tokenizer, inputs)
            features = self.program(*(tokens[name] for name, _ in self.program.inputs))
            if features.ndim == 3:  # one vector per token: take the mean over tokens
                weights = tokens["attention_mask"][:, :, None].astype(np.float64)
                n_tokens = np.maximum(weights.sum(axis=1), 1.0)  # a text may have no token
                features = (features * weights).sum(axis=1) / n_tokens
        return features.astype(np.float32).astype(np.float64)  # rounded, as in the cache

    @functools.cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer of texts, which pads the texts of a batch to the same length."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InvalidInput(
                "encoders of texts need the package tokenizers: pip install 'daband[onnx]'"
            ) from None
        tokenizer = Tokenizer.from_str(str(self.tokenizer))
        if tokenizer.padding is None:
            tokenizer.enable_padding()
        return tokenizer

    # The cache of features on disk.

    @functools.cached_property
    def digest(self) -> str:
        """A hash of everything that determines the features."""
        settings = json.dumps([{**self.state(), "name": None}, self.tokenizer], sort_keys=True)
        return hashlib.sha256(self.program.content + settings.encode()).hexdigest()[:32]

    @property
    def _cache_path(self) -> Path:
        """The file of cached features."""
        return get_cache_directory() / "features" / f"{self.digest}.sqlite"

    def _read_cache(self, keys: list[bytes]) -> dict[bytes, FloatArray]:
        """Return the cached features by key, for those of ``keys`` that are in the cache."""
        cached_features: dict[bytes, FloatArray] = {}
        if not self._cache_path.is_file():
            return {}
        try:
            with contextlib.closing(sqlite3.connect(self._cache_path)) as connection:
                for key in keys:
                    for (features,) in connection.execute(
                        "SELECT value FROM features WHERE key = ?", (key,)
                    ):
                        cached_features[key] = np.frombuffer(features, np.float32).astype(
                            np.float64
                        )
        except (OSError, sqlite3.Error):
            return {}  # if the cache is damaged or locked, features are computed again
        return {
            key: features
            for key, features in cached_features.items()
            if features.shape == (self.n_features,)
        }

    def _write_cache(self, features: Mapping[bytes, FloatArray]) -> None:
        """Add features to the cache. Do nothing if the cache cannot be written."""
        try:
            self._cache_path.parent.mkdir(parents=True, exist_ok=True)
            with (
                contextlib.closing(sqlite3.connect(self._cache_path, timeout=30)) as connection,
                connection,
            ):
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB)"
                )
                rows = [
                    (key, row_features.astype(np.float32).tobytes())
                    for key, row_features in features.items()
                ]
                connection.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)
        except (OSError, sqlite3.Error):
            return

    # Saving and loading.

    def state(self) -> dict[str, Any]:
        """Return the settings in JSON types, without the program and the tokenizer, which are in
        ``arrays``.
        """
        reader_settings = None if self.image_reader is None else asdict(self.image_reader)
        return {"name": self.name, "single": self.program.is_single_row, "pixels": reader_settings}

    def arrays(self) -> Arrays:
        """Return the program, and the tokenizer if there is one, as uint8 arrays."""
        arrays = {"program": np.frombuffer(self.program.content, np.uint8)}
        if self.tokenizer is not None:
            arrays["tokenizer"] = np.frombuffer(self.tokenizer.encode(), np.uint8)
        return arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Arrays) -> InputEncoder:
        """Return the encoder with this ``state`` and these ``arrays``."""
        image_reader = None if state["pixels"] is None else ImageReader(**state["pixels"])
        tokenizer = bytes(arrays["tokenizer"]).decode() if "tokenizer" in arrays else None
        program = OnnxProgram(bytes(arrays["program"]), is_single_row=bool(state["single"]))
        return cls(str(state["name"]), program, image_reader=image_reader, tokenizer=tokenizer)


def _make_cache_key(content: bytes) -> bytes:
    """Return the key of an image or a text in the cache."""
    return hashlib.blake2b(content, digest_size=16).digest()


def tokenize_texts(tokenizer: Any, texts: Sequence[str]) -> Arrays:
    """Return the inputs of a text encoder for n texts, by name, each (n, length) with the same
    length for all texts.
    """
    tokenized = tokenizer.encode_batch(list(texts))
    return {
        name: np.array([getattr(text, attribute) for text in tokenized], np.int64)
        for name, attribute in TOKEN_ATTRIBUTES.items()
    }


#: Functions that convert a named model or a module to an encoder; see ``as_input_encoder`` for the
#: arguments. ``daband.neural`` adds one when it is imported.
encoder_builders: list[Callable[[Any, tuple[int, int] | None], InputEncoder]] = []


def as_input_encoder(encoder: Any, framing: tuple[int, int] | None = None) -> InputEncoder:
    """Return the encoder for the argument ``encoder`` of a reader.

    ``encoder`` is an ``InputEncoder``, a name such as "timm:resnet18", a ``torch.nn.Module``, or the
    path of an ONNX file or of a folder with model.onnx and tokenizer.json. ``framing`` is (resize,
    crop), the sides in pixels to which images are resized and then cropped, for a module or an ONNX
    file. Named models have their own sizes.
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
        return InputEncoder(path.name, program, image_reader=ImageReader(*framing, squash=True))
    if path is not None and (path / "model.onnx").is_file():
        if not (path / "tokenizer.json").is_file():
            raise InvalidInput(f"encoder {encoder} has no tokenizer.json next to model.onnx")
        content = (path / "model.onnx").read_bytes()
        tokenizer = (path / "tokenizer.json").read_text("utf-8")
        return InputEncoder(path.name, OnnxProgram(content), tokenizer=tokenizer)
    import_neural()
    if not encoder_builders:
        raise InvalidInput(
            f"encoder {encoder!r} is converted by torch: pip install 'daband[deep]'; an .onnx file"
            " does not need torch"
        )
    return encoder_builders[-1](encoder, framing)
