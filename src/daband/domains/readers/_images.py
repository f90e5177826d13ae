"""Build pairs from folders of images with a sub-folder per class (``from_images``).

Files are decoded by several threads when a context is first read. Decoded images are cached if all
of them take at most a gigabyte.
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

from daband.base._arguments import check_int
from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.base._files import check_path
from daband.base._lazy_polars import pl
from daband.domains._contract import About, Contexts, EvaluationDomain, Pair, RewardDomain
from daband.domains._mixtures import allow_several_domains
from daband.domains._splits import hold_out, require_classes, split_half
from daband.domains.readers._columns import Columns
from daband.domains.readers._tables import from_table
from daband.errors import DataError, InvalidInput
from daband.features._image_layout import convert_image_errors, read_pixels
from daband.features._shift import ShiftLike, as_shift
from daband.features._table_transform import TableTransform, wrap_encoders

#: Name of the column of image paths in the table from which an encoder computes contexts.
IMAGE_COLUMN = "image"
#: Maximum number of bytes of decoded images kept in memory.
_MAX_CACHED_BYTES = 1 << 30
#: Suffixes of image files.
_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}


def decode_image(path: Path, resize: int | None = None, crop: int | None = None) -> AnyArray:
    """Return an image file as (H, W, 3) of uint8, resized to ``resize`` and cropped to ``crop``
    pixels per side.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        with convert_image_errors(str(path)):
            return read_pixels(path, resize, crop)
    except InvalidInput as error:
        raise DataError(str(error)) from None


def _check_framing(framing: int | tuple[int, int]) -> tuple[int, int]:
    """Return the sides in pixels after resizing and after cropping, (resize, crop)."""
    resize, crop = (
        framing if isinstance(framing, tuple) and len(framing) == 2 else (framing, framing)
    )
    if check_int("framing", crop, minimum=1) > check_int("framing", resize, minimum=1):
        raise InvalidInput(
            f"framing must be an integer, or (resize, crop) with crop <= resize, got {framing}"
        )
    return resize, crop


class ImageContexts(Contexts):
    """Image files as contexts (3, H, W) of uint8.

    Args:
        paths: the n image files.
        framing: the side in pixels to which an image is resized, and the side of the centre crop.
    """

    framing: tuple[int, int]

    def __init__(self, paths: Sequence[Path], framing: tuple[int, int]) -> None:
        if not paths:
            raise DataError("paths must have at least one image file")
        #: The file of each context.
        self.files = tuple(str(path) for path in paths)
        self.framing = _check_framing(framing)
        self.context_shape = (3, self.framing[1], self.framing[1])
        shape = (len(paths), *self.context_shape)
        self._pixels = np.empty(shape, np.uint8) if math.prod(shape) <= _MAX_CACHED_BYTES else None
        self._is_decoded = np.zeros(len(paths), np.bool_)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def row_names(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]
        return {"file": self.files}

    def read(self, indices: IntArray) -> AnyArray:
        indices = np.asarray(indices, dtype=np.int64)
        if self._pixels is None:
            return self._decode(indices)
        new_indices = np.unique(indices[~self._is_decoded[indices]])
        if len(new_indices):
            self._pixels[new_indices] = self._decode(new_indices)
            self._is_decoded[new_indices] = True
        return self._pixels[indices]

    def _decode(self, indices: IntArray) -> AnyArray:
        """Return the decoded images at these indices, (B, 3, H, W)."""
        # Pillow releases the interpreter lock while it decodes
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            images = pool.map(
                lambda index: decode_image(Path(self.files[index]), *self.framing), indices.tolist()
            )
            return np.stack([image.transpose(2, 0, 1) for image in images])


class LabelledImages(ImageContexts, RewardDomain):
    """Image files with labels.

    The reward of the arm equal to the label is 1, and those of the others are 0.
    """

    def __init__(self, images: ImageList, framing: tuple[int, int], *, n_arms: int) -> None:
        super().__init__(images.paths, framing)
        self._labels = images.labels
        self.n_arms = n_arms

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        rewards = np.eye(self.n_arms)[self._labels[indices]]
        return rewards, rewards


@dataclass(frozen=True)
class ImageList:
    """Image files and their classes."""

    #: The n image files.
    paths: tuple[Path, ...]
    #: Class of each file, (n,); empty if the files have none.
    labels: IntArray

    def select(self, rows: IntArray) -> ImageList:
        """Return the files and classes at these indices."""
        return ImageList(tuple(self.paths[row] for row in rows), self.labels[rows])


@allow_several_domains()
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
    shift: ShiftLike = None,
    name: str = "images",
) -> Pair:
    """Return a pair made from folders of images, which are decoded when they are needed.

    Args:
        source: a folder with one sub-folder per class; the names of the sub-folders are the class
            names.
        target: a folder of target images. If it has no sub-folders, the target is unlabelled, and
            the pair has no ``target_test``. If it has the source's sub-folders and ``target_test``
            is None, a fixed half of the images is kept for the evaluator. With ``target_test``,
            training sees all images.
        sources: several sources by name, instead of ``source``; all have the same sub-folders.
        targets: several targets by name, instead of ``target``; ``target_test`` is then a folder
            for each name.
        target_test: a folder with the same sub-folders as the source, for the evaluator.
        source_test: a folder like ``source`` of images that training does not use, or the fraction
            of ``source`` to hold out (a fixed split by class), or None.
        framing: the side of a context in pixels, by default 224; or a tuple (resize, crop), to
            resize both sides and crop the centre. With ``encoder``, it is the size of the images
            that a module or an ONNX file gets. It must be None for named encoders, which define
            this size.
        encoder: a frozen encoder whose features are the contexts, instead of pixels:
            "timm:resnet18", "efficientnet_lite0", a
            ``torch.nn.Module`` from (B, 3, H, W) in [0, 1] to (B, ...), or the path of an ONNX
            file. Features are computed once and kept in the cache folder.
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or
            several (see ``daband.features._shift``); by default "style" for images and "covariate" for
            vectors.
        name: the pair's name in reports; random splits of source and target depend on it.

    Contexts are (3, H, W) of uint8. If the target has sub-folders, the paths of its images contain
    the class names, but no training code of daband reads these paths.

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
    source_folder = check_path(source, "source")
    target_folder = check_path(target, "target")
    given_framing = 224 if framing is None and encoder is None else framing
    checked_framing = None if given_framing is None else _check_framing(given_framing)
    class_names = _list_class_names(source_folder)
    source_images = scan_classes(source_folder, class_names)
    labelled_images: ImageList | None = None
    test_images: ImageList | None = None
    _check_folder(target_folder)
    target_paths = tuple(_list_images(target_folder))
    if not target_paths:
        raise DataError(f"{target_folder} has no images ({', '.join(sorted(_IMAGE_SUFFIXES))})")
    if target_test is not None:
        test_images = scan_classes(check_path(target_test, "target_test"), class_names)
    elif any((target_folder / class_name).is_dir() for class_name in class_names):
        folder_names = {path.relative_to(target_folder).parts[0] for path in target_paths}
        unknown_folders = sorted(folder_names - set(class_names))
        if unknown_folders:
            raise DataError(
                f"{target_folder / unknown_folders[0]} is not a class of the source"
                f" ({', '.join(class_names)}). Rename it or move it; or put all target images into"
                " one folder, to use them without labels"
            )
        labelled_images = scan_classes(target_folder, class_names)
    held_out = source_test  # a list of images, the fraction of images to hold out, or None
    if isinstance(source_test, str | Path):
        held_out = scan_classes(Path(source_test), class_names)
    image_fields: dict[str, Any] = {
        "source": source_images,
        "source_test": held_out,
        "target_test": test_images,
    }
    options: dict[str, Any] = {"name": name}
    if encoder is not None:
        image_fields["target"] = labelled_images or ImageList(target_paths, np.zeros(0, np.int64))
        options["shift"] = "style" if shift is None else shift
        return _build_encoded_pair(image_fields, class_names, encoder, checked_framing, options)
    if labelled_images is not None:
        training_rows, held_out_rows = split_half(labelled_images.labels, name=name)
        labelled_images, image_fields["target_test"] = (
            labelled_images.select(rows) for rows in (training_rows, held_out_rows)
        )
        target_paths = labelled_images.paths
    assert checked_framing is not None
    image_fields |= {"target": target_paths, "target_labelled": labelled_images}
    return build_image_pair(
        **image_fields, class_names=class_names, framing=checked_framing, shift=shift, **options
    )


def _build_encoded_pair(
    fields: Mapping[str, Any],
    class_names: Sequence[str],
    encoder: Any,
    framing: tuple[int, int] | None,
    options: Any,
) -> Pair:
    """Return a pair whose contexts are features of images, computed from a table with a column of
    paths.

    Args:
        fields: lists of images by field of the pair; ``source_test`` may also be a fraction or
            None.
        class_names: the class names.
        encoder: as in ``from_images``.
        framing: (resize, crop), or None.
        options: other arguments of ``from_table``.
    """
    frames: dict[str, Any] = {}
    for field, image_list in fields.items():
        frames[field] = image_list
        if isinstance(image_list, ImageList):
            # Images are shuffled, so that the index of a target context does not reveal its class.
            order = np.random.default_rng(len(image_list.paths)).permutation(len(image_list.paths))
            columns: dict[str, Any] = {IMAGE_COLUMN: [str(image_list.paths[row]) for row in order]}
            if len(image_list.labels):
                columns["class"] = [class_names[image_list.labels[row]] for row in order]
            frames[field] = pl.DataFrame(columns)
    transform = TableTransform(tuple(wrap_encoders({IMAGE_COLUMN: encoder}, framing).values()))
    table_columns = Columns(context=(IMAGE_COLUMN,), label="class")
    pair = from_table(
        **frames, columns=table_columns, transform=transform, class_names=class_names, **options
    )
    return replace(
        pair, about=About(summary="folders of images given by the user", licence="the user's own")
    )


def build_image_pair(
    *,
    source: ImageList,
    source_test: ImageList | float | None,
    target: Sequence[Path],
    target_test: ImageList | None,
    target_labelled: ImageList | None,
    class_names: Sequence[str],
    framing: tuple[int, int],
    shift: ShiftLike = None,
    name: str,
) -> Pair:
    """Return a pair made from lists of image files.

    ``target`` has files without classes. ``target_labelled`` has the same files with their classes.
    ``source_test`` may also be the fraction of ``source`` to hold out. ``framing`` is (resize,
    crop). Other arguments are as in ``from_images``.
    """
    require_classes(source.labels, class_names, data_name="the source")
    if target_test is not None:
        require_classes(target_test.labels, class_names, data_name="the target's test")
    domain_options: dict[str, Any] = {"framing": framing, "n_arms": len(class_names)}
    # Files are listed by class. They are shuffled, so that the index of a target context does not
    # reveal its class.
    order = np.random.default_rng(len(target)).permutation(len(target))
    target_contexts = ImageContexts([target[row] for row in order], framing)
    labelled_domain = None
    if target_labelled is not None:
        labelled_domain = LabelledImages(target_labelled.select(order), **domain_options)
    source_domain: RewardDomain = LabelledImages(source, **domain_options)
    held_out_domain: EvaluationDomain | None
    if isinstance(source_test, ImageList):
        held_out_domain = EvaluationDomain(LabelledImages(source_test, **domain_options))
    else:
        source_domain, held_out_domain = hold_out(source_domain, fraction=source_test, name=name)
    test_domain = (
        None
        if target_test is None
        else EvaluationDomain(LabelledImages(target_test, **domain_options))
    )
    return Pair(
        name=name,
        context_shape=target_contexts.context_shape,
        n_arms=len(class_names),
        class_names=tuple(class_names),
        source=source_domain,
        source_test=held_out_domain,
        target=target_contexts,
        target_test=test_domain,
        target_labelled=labelled_domain,
        feedback="one_hot",
        about=About(summary="folders of images given by the user", licence="the user's own"),
        shift=as_shift(shift, context_shape=target_contexts.context_shape),
    )


def scan_classes(folder: Path, class_names: Sequence[str]) -> ImageList:
    """Return the images in the sub-folders ``class_names``, sorted by class and name, with
    labels.
    """
    paths: list[Path] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        class_folder = folder / class_name
        image_paths = _list_images(class_folder)
        if not image_paths:
            raise DataError(
                f"{class_folder} is missing or has no images: class {class_name!r} has no example"
                f" in {folder}. Target images can also be in one folder without sub-folders, and"
                " are then used without labels"
            )
        paths += image_paths
        labels += [label] * len(image_paths)
    return ImageList(tuple(paths), np.array(labels, dtype=np.int64))


def _list_class_names(folder: Path) -> list[str]:
    """Return the sorted names of the sub-folders, one per class.

    Raise an error if there are fewer than two.
    """
    _check_folder(folder)
    class_names = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if len(class_names) < 2:
        raise DataError(
            f"{folder} must have one sub-folder per class, at least two, found {class_names}"
        )
    return class_names


def _check_folder(folder: Path) -> None:
    """Raise an error if the folder does not exist."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; check the path")


def _list_images(folder: Path) -> list[Path]:
    """Return the images in a folder and its sub-folders, sorted by path."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _IMAGE_SUFFIXES and path.is_file()
    )
