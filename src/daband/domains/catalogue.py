"""What data there are, where they lie, whether they are whole, and where to get them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from daband.domains.data_paths import data_directory, find
from daband.domains.registry import Resource, pairs

__all__ = ["PairRecord", "Resource", "ResourceStatus", "check", "listing", "resources"]

_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
_BSDS500_URL = "https://www.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz"
_MNIST_M_URL = "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi"
_VISDA_URL = "http://csr.bu.edu/ftp/visda17/clf"
_RESEARCH = "for research"


@dataclass(frozen=True)
class ResourceStatus:
    """One resource of one pair: ``state`` is "there", "missing" or "damaged"."""

    pair: str
    resource: Resource
    state: str
    path: Path

    @property
    def remedy(self) -> str:
        """What to do about it; empty when nothing is wrong."""
        if self.state == "there":
            return ""
        if self.resource.url:
            again = "delete it and run" if self.state == "damaged" else "run"
            return f"{again} `daband data get {self.pair}` (from {self.resource.url})"
        return self.resource.by_hand


@dataclass(frozen=True)
class PairRecord:
    """One line of the list of pairs: ``state`` is "ready" or "missing"."""

    name: str
    summary: str
    state: str
    licence: str
    citation: str
    options: tuple[str, ...]


def _idx(name: str, md5: str, content_md5: str, size: int) -> Resource:
    return Resource(
        what=f"MNIST, {name}",
        places=(f"mnist/{name}.gz", f"mnist/{name}", f"MNIST/raw/{name}.gz", f"MNIST/raw/{name}"),
        licence="CC BY-SA 3.0",
        url=f"{_MNIST_URL}/{name}.gz",
        md5=md5,
        content_md5=content_md5,
        size=size,
    )


def _by_hand(what: str, place: str, licence: str, how: str) -> Resource:
    return Resource(what=what, places=(place,), licence=licence, by_hand=how)


_VISDA_TERMS = "non-commercial research and education, no redistribution"
_SIGNS_HOW = (
    "put one folder a class, 00 to 42 in GTSRB's order, below it: SynSigns' rendered signs in signs/synthetic, "
    "GTSRB's (https://benchmark.ini.rub.de, as PNG, names TRACK_FRAME.png) in signs/real"
)
_AMAZON_HOW = "get the 400-feature .mat files (variables fts, labels) that skada-bench and transferlearning.xyz hand on"
_OFFICE_HOW = "get the SURF .mat files (variables fts, labels) of the geodesic flow kernel's authors"
_USPS_HOW = (
    "get the USPS zip codes' digits (https://hastie.su.domains/ElemStatLearn/data.html), resize to 28x28, and save "
    "them as an npz of uint8 with x_train y_train x_test y_test, ink bright"
)
_SEMEION_HOW = (
    "get semeion.data from https://archive.ics.uci.edu/dataset/178/semeion+handwritten+digit and save it as an npz of "
    "uint8 with x (n, 16, 16), ink 255, and y"
)
_WARFARIN_HOW = "get the IWPC data set from https://www.pharmgkb.org/downloads and save its first sheet as CSV"
_S2RDA_HOW = (
    "get S2RDA-49 from the address in https://github.com/huitangtang/On_the_Utility_of_Synthetic_Data, unpack it so "
    "that s2rda49/synthetic and s2rda49/real exist, and put its real_val.txt and real_test.txt into s2rda49/splits"
)

# Sums of MNIST and MNIST-M are the published ones; that of BSDS500 is the one that public loaders of it check.
_MNIST = (
    _idx(
        "train-images-idx3-ubyte",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "6bbc9ace898e44ae57da46a324031adb",
        9_912_422,
    ),
    _idx("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624", 28_881),
    _idx("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea", 1_648_877),
    _idx("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637", 4_542),
)

_RESOURCES: dict[str, tuple[Resource, ...]] = {
    "digit": (
        *(replace(resource, optional=True) for resource in _MNIST),  # the embedded form does without
        Resource(
            what="MNIST-M as released",
            places=("mnist_m/mnist_m_train_labels.txt", "mnist_m/mnist_m_28.npz", "mnist_m/mnist_m.tar.gz"),
            licence=_RESEARCH,
            url=_MNIST_M_URL,
            md5="859df31c91afe82e80e5012ba928f279",
            archive="mnist_m.tar.gz",
            unpack_into=".",
            optional=True,
        ),
        Resource(
            what="BSDS500's training photographs",
            places=("BSR/BSDS500/data/images/train", "bsds500_train"),
            licence="non-commercial research and education",
            url=_BSDS500_URL,
            md5="0b17383ff0b21fe43d2f28e624203169",
            size=70_763_455,
            archive="BSR_bsds500.tgz",
            unpack_into=".",
            optional=True,
        ),
    ),
    "visda17": tuple(
        Resource(
            what=f"VisDA-2017 classification, {split} set",
            places=tuple(f"{root}/{split}" for root in ("visda17", "VisDA2017", "visda-2017")),
            licence=_VISDA_TERMS,
            url=f"{_VISDA_URL}/{split}.tar",
            archive=f"{split}.tar",
            unpack_into="visda17",
        )
        for split in ("train", "validation")
    ),
    "s2rda49": tuple(
        Resource(
            what=f"S2RDA-49, {domain} domain",
            places=tuple(f"{root}/{domain}" for root in ("s2rda49", "S2RDA-49", "S2RDA-49/S2RDA-49")),
            licence=_RESEARCH,
            by_hand=_S2RDA_HOW,
        )
        for domain in ("synthetic", "real")
    ),
    "signs": (
        _by_hand("SynSigns, rendered signs", "signs/synthetic", _RESEARCH, _SIGNS_HOW),
        _by_hand("GTSRB, photographed signs", "signs/real", "free for research, with citation", _SIGNS_HOW),
    ),
    "amazon": tuple(
        _by_hand(f"reviews of {domain}", f"amazon_reviews_400/{domain}_400.mat", _RESEARCH, _AMAZON_HOW)
        for domain in ("books", "dvd", "elec", "kitchen")
    ),
    "office_caltech": tuple(
        _by_hand(f"pictures of {domain}", f"office_caltech10_surf/{domain}.mat", _RESEARCH, _OFFICE_HOW)
        for domain in ("amazon", "caltech10", "dslr", "webcam")
    ),
    "handwritten": (
        *_MNIST,
        _by_hand("USPS digits", "usps_semeion/usps_28.npz", _RESEARCH, _USPS_HOW),
        _by_hand("Semeion digits", "usps_semeion/semeion_16.npz", "CC BY 4.0", _SEMEION_HOW),
    ),
    "warfarin": (
        _by_hand("IWPC warfarin data", "warfarin/warfarin.csv", "CC BY-SA 4.0, PharmGKB's terms", _WARFARIN_HOW),
    ),
}


def resources(name: str) -> tuple[Resource, ...]:
    """What a pair reads from the data directory; nothing for one that needs nothing from outside."""
    return pairs.get(name).resources or _RESOURCES.get(name.partition("/")[0], ())


def listing() -> Iterator[PairRecord]:
    """Every registered pair, and whether its data are there."""
    for name in pairs.names():
        entry = pairs.get(name)
        needed = [resource for resource in resources(name) if not resource.optional]
        if "/" in name:
            needed = [resource for resource in needed if resource.places[0] in entry.about.needs]
        ready = all(find(resource.places) is not None for resource in needed)
        about = entry.about
        yield PairRecord(
            name, about.summary, "ready" if ready else "missing", about.licence, about.citation, tuple(entry.options())
        )


def check(name: str, *, directory: Path | None = None) -> Iterator[ResourceStatus]:
    """Look at every resource of a pair; those with a known checksum are read and compared."""
    root = data_directory() if directory is None else directory
    for resource in resources(name):
        path = find(resource.places, directory=root)
        if path is None:
            yield ResourceStatus(name, resource, "missing", root / resource.places[0])
        else:
            yield ResourceStatus(name, resource, "there" if is_whole(path, resource) else "damaged", path)


def is_whole(path: Path, resource: Resource) -> bool:
    """Whether a file has the published checksum, packed or unpacked; a folder only has to be there and not be empty."""
    if path.is_dir():
        return any(path.iterdir())
    if not resource.content_md5:
        return path.stat().st_size > 0
    digest = md5_of(path)
    if digest in (resource.md5, resource.content_md5):
        return True
    try:
        with gzip.open(path) as inside:
            return hashlib.file_digest(inside, _md5).hexdigest() == resource.content_md5
    except (OSError, EOFError, zlib.error):
        return False


def md5_of(path: Path) -> str:
    """The md5 of a file, in hexadecimal: publishers of data give it to tell damage, not malice."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, _md5).hexdigest()


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
