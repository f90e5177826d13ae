"""Image files as contexts: folders with a sub-folder per class (``from_images``).

Files are decoded when a context is first read, by several threads, and kept in memory if all take at most a gigabyte.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import check_int
from daband._arrays import AnyArray, FloatArray, IntArray
from daband._files import checked_path
from daband._image_layout import decode, image_errors
from daband._lazy_polars import pl
from daband._shift import ShiftLike, as_shift
from daband._table_transform import TableTransform, encoded_columns
from daband.domains._contract import About, Contexts, EvaluationDomain, Pair, RewardDomain
from daband.domains._mixtures import takes_several
from daband.domains._splits import EvaluatedRewards, hold_out, require_classes, split_half
from daband.domains.readers._columns import Columns
from daband.domains.readers._tables import from_table
from daband.errors import DataError, InvalidInput

#: The column of image paths if an encoder reads them.
IMAGE_COLUMN = "image"
#: Maximum number of bytes of decoded images kept in memory.
_MAX_BYTES = 1 << 30
_KINDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}


def decode_image(path: Path, resize: int | None = None, crop: int | None = None) -> AnyArray:
    """Return an image file as (H, W, 3) of uint8; a damaged file is an error that names it."""
    if not path.is_file():
        raise DataError(f"{path} is not there")
    try:
        with image_errors(str(path)):
            return decode(path, resize, crop)
    except InvalidInput as error:
        raise DataError(str(error)) from None


def _checked_framing(framing: int | tuple[int, int]) -> tuple[int, int]:
    resize, crop = framing if isinstance(framing, tuple) and len(framing) == 2 else (framing, framing)
    if check_int("framing", crop, minimum=1) > check_int("framing", resize, minimum=1):
        raise InvalidInput(f"framing must be a side or (resize, crop) with crop <= resize, got {framing}")
    return resize, crop


class ImageContexts(Contexts):
    """Image files as contexts (3, H, W) of uint8.

    ``framing`` defines how an image of any size becomes a context: both sides are resized to the first number, then the
    centre is cropped to the second. Decoded images are kept if all of them take at most a gigabyte.
    """

    def __init__(self, paths: Sequence[Path], framing: tuple[int, int], *, passes: int = 1) -> None:
        if not paths:
            raise DataError("contexts of images need at least one file")
        #: The file of each context.
        self.files = tuple(str(path) for path in paths)
        self.framing = _checked_framing(framing)
        self.context_shape = (3, self.framing[1], self.framing[1])
        self.passes = passes
        shape = (len(paths), *self.context_shape)
        self._pixels = np.empty(shape, np.uint8) if math.prod(shape) <= _MAX_BYTES else None
        self._decoded = np.zeros(len(paths), np.bool_)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def row_names(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]
        return {"file": self.files}

    def read(self, indices: IntArray) -> AnyArray:
        indices = np.asarray(indices, dtype=np.int64)
        if self._pixels is None:
            return self._decode(indices)
        missing = np.unique(indices[~self._decoded[indices]])
        if len(missing):
            self._pixels[missing] = self._decode(missing)
            self._decoded[missing] = True
        return self._pixels[indices]

    def _decode(self, indices: IntArray) -> AnyArray:
        resize, crop = self.framing or (None, None)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # Pillow releases the interpreter lock while it decodes
            images = pool.map(lambda at: decode_image(Path(self.files[at]), resize, crop), indices.tolist())
            return np.stack([image.transpose(2, 0, 1) for image in images])


class ImageSource(ImageContexts, RewardDomain):
    """Image files with labels (n,): the reward is 1 for the arm equal to the label, else 0."""

    def __init__(self, images: ImageList, framing: tuple[int, int], *, n_arms: int, passes: int = 1) -> None:
        super().__init__(images.paths, framing, passes=passes)
        self._labels = images.labels
        self.n_arms = n_arms

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        rewards = np.eye(self.n_arms)[self._labels[indices]]
        return rewards, rewards


@dataclass(frozen=True)
class ImageList:
    """Files with the class of each, (n,)."""

    paths: tuple[Path, ...]
    labels: IntArray

    def take(self, rows: IntArray) -> ImageList:
        """Return some of the files."""
        return ImageList(tuple(self.paths[row] for row in rows), self.labels[rows])


@takes_several()
def from_images(
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    sources: Mapping[str, str | Path] | None = None,
    targets: Mapping[str, str | Path] | None = None,
    target_test: Any = None,
    source_test: Any = 0.1,
    framing: int | tuple[int, int] | None = None,
    encoder: Any = None,
    passes: int = 1,
    target_passes: int | None = None,
    shift: ShiftLike = None,
    name: str = "images",
) -> Pair:
    """Return a pair made from image folders; images are decoded when first needed.

    Args:
        source: a folder with one sub-folder per class; the names of the sub-folders are the class names.
        target: a folder of the target's images. A flat folder of photographs is an unlabelled target: the pair then has
            no ``target_test``. Without ``target_test`` and with the source's sub-folders, one half of it, the same in
            every run, is kept for the evaluator. With ``target_test``, training sees every image below it.
        sources: several sources by name, instead of ``source``; all have the same sub-folders.
        targets: several targets by name, instead of ``target``; ``target_test`` is then a folder for each name.
        target_test: a folder with the same sub-folders as the source, for the evaluator.
        source_test: a folder like ``source`` of images that training does not use, or the fraction of ``source`` to
            hold out (a fixed split by class), or None.
        framing: the side of a context in pixels, by default 224; or two, to resize both sides to the first and crop
            the centre. With ``encoder``, the input of a module or an ONNX file; a named encoder has its own.
        encoder: a frozen encoder whose features are the contexts, instead of pixels: "torchvision:resnet50",
            "timm:resnet18", "open_clip:ViT-B-32", "efficientnet_lite0", a ``torch.nn.Module`` from (B, 3, H, W) in
            [0, 1] to (B, ...), or the path of an ONNX file or of a module that ``torch.save`` wrote (which runs the
            code in that file). Features are computed once and kept in the cache folder.
        passes: how many times each source image may be shown.
        target_passes: how many times each target image may be shown; by default equal to ``passes``.
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or several (see
            ``daband._shift``); by default "style" for images and "covariate" for vectors.
        name: the pair's name in reports; it also fixes how source and target are split.

    Contexts are (3, H, W) of uint8. The target stream has the names of its files, and a sub-folder's name is its
    class. So target labels can be read from these paths, but no training code of daband does so.

    >>> from pathlib import Path
    >>> from PIL import Image
    >>> for number in range(40):
    ...     for folder in (Path("rendered", ["day", "night"][number % 2]), Path("photographs")):
    ...         folder.mkdir(parents=True, exist_ok=True)
    ...         Image.new("RGB", (9, 9), (number, 0, 0)).save(folder / f"{number}.png")
    >>> pair = daband.domains.from_images(source="rendered", target="photographs", framing=8)
    >>> pair.context_shape, pair.class_names, pair.target_test
    ((3, 8, 8), ('day', 'night'), None)
    """
    if source is None or target is None:
        raise InvalidInput("from_images needs a source and a target folder")
    source, target = checked_path(source, "source"), checked_path(target, "target")
    sides = None if framing is None and encoder is not None else _checked_framing(224 if framing is None else framing)
    classes = _class_folders(source)
    source_images = scan_classes(source, classes)
    labelled: ImageList | None = None
    test: ImageList | None = None
    contexts = tuple(_images_below(target))
    if target_test is not None:
        test = scan_classes(checked_path(target_test, "target_test"), classes)
    elif any((target / label).is_dir() for label in classes):
        others = sorted({path.relative_to(target).parts[0] for path in contexts} - set(classes))
        if others:
            raise DataError(
                f"{target / others[0]} is no class of the source ({', '.join(classes)}). Rename it or move it "
                "away; or put all images of the target into one folder, and they are used without labels"
            )
        labelled = scan_classes(target, classes)
    held_out = scan_classes(Path(source_test), classes) if isinstance(source_test, str | Path) else source_test
    if encoder is not None:
        parts = {"source": source_images, "source_test": held_out, "target_test": test}
        parts["target"] = labelled or ImageList(contexts, np.zeros(0, np.int64))
        shift = "style" if shift is None else shift
        common: dict[str, Any] = {"passes": passes, "target_passes": target_passes, "shift": shift, "name": name}
        return _encoded_pair(parts, classes, encoder, sides, common)
    if labelled is not None:
        seen, held = split_half(labelled.labels, name=name)
        labelled, test = labelled.take(seen), labelled.take(held)
        contexts = labelled.paths
    assert sides is not None
    return pair_of_images(
        source=source_images,
        source_test=held_out,
        target=contexts,
        target_test=test,
        target_labelled=labelled,
        class_names=classes,
        framing=sides,
        passes=passes,
        target_passes=target_passes,
        shift=shift,
        name=name,
    )


def _encoded_pair(
    parts: Mapping[str, Any], classes: Sequence[str], encoder: Any, framing: tuple[int, int] | None, rest: Any
) -> Pair:
    """Return a pair whose contexts are features of images: a table with one column of paths."""
    frames: dict[str, Any] = {}
    for what, images in parts.items():
        frames[what] = images
        if isinstance(images, ImageList):  # shuffled, so that an index of the target does not reveal the class
            order = np.random.default_rng(len(images.paths)).permutation(len(images.paths))
            columns: dict[str, Any] = {IMAGE_COLUMN: [str(images.paths[row]) for row in order]}
            if len(images.labels):
                columns["class"] = [classes[images.labels[row]] for row in order]
            frames[what] = pl.DataFrame(columns)
    transform = TableTransform(tuple(encoded_columns({IMAGE_COLUMN: encoder}, framing).values()))
    roles = Columns(context=(IMAGE_COLUMN,), label="class")
    pair = from_table(**frames, columns=roles, transform=transform, class_names=classes, **rest)
    return replace(pair, about=About(summary="folders of images given by the user", licence="the user's own"))


def pair_of_images(
    *,
    source: ImageList,
    source_test: ImageList | float | None,
    target: Sequence[Path],
    target_test: ImageList | None,
    target_labelled: ImageList | None,
    class_names: Sequence[str],
    framing: tuple[int, int],
    passes: int,
    target_passes: int | None = None,
    shift: ShiftLike = None,
    name: str,
) -> Pair:
    """Return a pair made from lists of image files; ``target_labelled`` lists the ``target`` files with classes."""
    passes = check_int("passes", passes, minimum=1)
    target_passes = passes if target_passes is None else check_int("target_passes", target_passes, minimum=1)
    require_classes(source.labels, class_names, where="the source")
    if target_test is not None:
        require_classes(target_test.labels, class_names, where="the target's test")
    options: dict[str, Any] = {"framing": framing, "n_arms": len(class_names)}
    # Files are listed class by class: shuffled, so that an index of the target does not reveal the class.
    rows = np.random.default_rng(len(target)).permutation(len(target))
    seen = ImageContexts([target[row] for row in rows], framing, passes=target_passes)
    later = None
    if target_labelled is not None:
        later = ImageSource(target_labelled.take(rows), passes=target_passes, **options)
    train: RewardDomain = ImageSource(source, passes=passes, **options)
    held: EvaluationDomain | None
    if isinstance(source_test, ImageList):
        held = EvaluatedRewards(ImageSource(source_test, **options))
    else:
        train, held = hold_out(train, fraction=source_test, name=name)
    test = None if target_test is None else EvaluatedRewards(ImageSource(target_test, **options))
    return Pair(
        name=name,
        context_shape=seen.context_shape,
        n_arms=len(class_names),
        class_names=tuple(class_names),
        source=train,
        source_test=held,
        target=seen,
        target_test=test,
        target_labelled=later,
        feedback="one_hot",
        about=About(summary="folders of images given by the user", licence="the user's own"),
        shift=as_shift(shift, context_shape=seen.context_shape),
    )


def scan_classes(folder: Path, class_folders: Sequence[str]) -> ImageList:
    """Return the images below each class's sub-folder, sorted by class and name."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, class_folder in enumerate(class_folders):
        below = folder / class_folder
        images = _list_images(below)
        if not images:
            raise DataError(
                f"{below} is missing or has no images: class {class_folder!r} has no example in {folder}. Images of a "
                "target may also lie in one folder without classes, and are used without labels then"
            )
        paths += images
        labels += [label] * len(images)
    return ImageList(tuple(paths), np.array(labels, dtype=np.int64))


def _class_folders(folder: Path) -> list[str]:
    _check_folder(folder)
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise DataError(f"{folder} should have one sub-folder per class, at least two; found {classes}")
    return classes


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")


def _images_below(folder: Path) -> list[Path]:
    _check_folder(folder)
    images = _list_images(folder)
    if not images:
        raise DataError(f"{folder} has no images ({', '.join(sorted(_KINDS))})")
    return images


def _list_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _KINDS and path.is_file())
