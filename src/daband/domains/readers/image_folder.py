"""``from_image_folder``: a pair of folders of images, one sub-folder a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daband.arrays import IntArray
from daband.domains.arguments import whole
from daband.domains.contract import About, Pair
from daband.domains.readers.image_domains import ImageContexts, ImageEvaluation, ImageSource
from daband.domains.readers.images import Framing, ImageStore
from daband.domains.splits import require_classes, split_half
from daband.errors import DataError
from daband.files import checked_path

__all__ = ["ImageList", "Reading", "from_image_folder", "pair_of_images", "scan_classes"]

_KINDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class ImageList:
    """Files with the class of each, (n,)."""

    paths: tuple[Path, ...]
    labels: IntArray

    def take(self, rows: IntArray) -> ImageList:
        """Some of the files."""
        return ImageList(tuple(self.paths[row] for row in rows), self.labels[rows])


@dataclass(frozen=True)
class Reading:
    """How images are read.

    ``workers`` processes (default: one a core) decode, into a ``cache`` on disk or none. ``normalise`` gives float32
    contexts normalised as for ImageNet instead of uint8.
    """

    workers: int | None = None
    cache: bool = True
    normalise: bool = False


def from_image_folder(
    *,
    source: str | Path,
    target: str | Path,
    target_test: str | Path | None = None,
    framing: Framing | int = 224,
    reading: Reading | None = None,
    passes: int = 1,
    name: str = "images",
) -> Pair:
    """A pair made of folders of images, decoded when they are first needed.

    Args:
        source: a folder with one sub-folder per class; the names of the sub-folders are the class names.
        target: a folder of the target's images. Without ``target_test`` it needs the same sub-folders, and one half of
            it, the same in every run, is kept for the evaluator; with it, training sees every image below it, and
            sub-folders are not needed.
        target_test: a folder with the same sub-folders as the source, for the evaluator.
        framing: the side of a context in pixels, or a ``Framing`` to resize first and then crop.
        reading: processes, cache and normalisation.
        passes: how many times each image may be shown.
        name: what reports call the pair; it also fixes how the target is split.

    Contexts are (3, H, W) of uint8. The target's stream holds the names of its files, and a sub-folder's name is its
    class: that much of the target's labels lies on disk for whoever looks; nothing of daband that trains does.
    """
    source, target = checked_path(source, "source"), checked_path(target, "target")
    classes = _class_folders(source)
    here = scan_classes(source, classes)
    paying: ImageList | None
    if target_test is None:
        there = scan_classes(Path(target), classes)
        seen, held = split_half(there.labels, name=name)
        paying, test = there.take(seen), there.take(held)
        contexts = paying.paths
    else:
        test = scan_classes(checked_path(target_test, "target_test"), classes)
        contexts = tuple(_images_below(Path(target)))
        labelled = all((Path(target) / label).is_dir() for label in classes)
        paying = scan_classes(Path(target), classes) if labelled else None
        if paying is not None and paying.paths != contexts:
            paying = None  # some images lie outside the class folders: nobody could say what they pay
    return pair_of_images(
        source=here,
        target=contexts,
        target_test=test,
        target_labelled=paying,
        class_names=classes,
        framing=Framing(framing, framing) if isinstance(framing, int) else framing,
        reading=reading or Reading(),
        passes=passes,
        name=name,
        about=About(summary="folders of images given by the user", licence="the user's own"),
    )


def pair_of_images(
    *,
    source: ImageList,
    target: Sequence[Path],
    target_test: ImageList,
    target_labelled: ImageList | None,
    class_names: Sequence[str],
    framing: Framing,
    reading: Reading,
    passes: int,
    name: str,
    about: About,
) -> Pair:
    """A pair of lists of image files; ``target_labelled`` lists the files of ``target`` with their classes."""
    passes = whole("passes", passes, least=1)
    for where, images in (("the source", source), ("the target's test", target_test)):
        require_classes(images.labels, class_names, where=where)
    n_arms, normalise = len(class_names), reading.normalise

    def store(paths: Sequence[Path]) -> ImageStore:
        return ImageStore(paths, framing, workers=reading.workers, cache=reading.cache)

    # Files are listed class by class: shuffled, so that a position of the target does not tell the class.
    rows = np.random.default_rng(len(target)).permutation(len(target))
    seen = store([target[row] for row in rows])
    later = None
    if target_labelled is not None:
        later = ImageSource(seen, target_labelled.labels[rows], n_arms=n_arms, passes=passes, normalise=normalise)
    return Pair(
        name=name,
        context_shape=framing.shape,
        n_arms=n_arms,
        class_names=tuple(class_names),
        source=ImageSource(store(source.paths), source.labels, n_arms=n_arms, passes=passes, normalise=normalise),
        target=ImageContexts(seen, passes=passes, normalise=normalise),
        target_test=ImageEvaluation(store(target_test.paths), target_test.labels, n_arms=n_arms, normalise=normalise),
        target_labelled=later,
        feedback="one_hot",
        about=about,
    )


def scan_classes(folder: Path, class_folders: Sequence[str]) -> ImageList:
    """The images below each class's sub-folder, in the order of classes and names."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, class_folder in enumerate(class_folders):
        below = folder / class_folder
        found = _list_images(below)
        if not found:
            raise DataError(f"{below} is missing or has no images: class {class_folder!r} has no example in {folder}")
        paths += found
        labels += [label] * len(found)
    return ImageList(tuple(paths), np.array(labels, dtype=np.int64))


def _class_folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise DataError(f"{folder} should have one sub-folder per class, at least two; found {classes}")
    return classes


def _images_below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    found = _list_images(folder)
    if not found:
        raise DataError(f"{folder} has no images ({', '.join(sorted(_KINDS))})")
    return found


def _list_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _KINDS and path.is_file())
