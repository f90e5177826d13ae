"""How fast contexts come: pairs in memory, image folders the first time and from the cache, and the memory they need.

    python benchmarks/loading.py [--images 2000] [--large 150000]

In-memory pairs should deliver 1 GB/s or more; a folder should be decoded with all cores busy, and its second pass
should be at least 20 times faster. ``--large`` streams that many images of 224 pixels from a cache that is taken to be
full (a sparse file: it takes no disk) and reports the peak memory, which should stay below 4 GB.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from daband.domains import Contexts, Framing, load
from daband.domains.readers.images import ImageStore


def in_memory(name: str, domain: Contexts, *, batch: int = 64, seconds: float = 1.0) -> None:
    """Bytes a second of training-sized batches in seeded order."""
    rounds = domain.rounds_available // batch
    domain.batch(0, batch, seed=0)  # the permutation is drawn once
    begun, size, served = time.perf_counter(), 0, 0
    while time.perf_counter() - begun < seconds:
        start = (served % rounds) * batch
        size += domain.batch(start, start + batch, seed=0).nbytes
        served += 1
    rate = size / (time.perf_counter() - begun) / 1e9
    print(f"{name:<34}{rate:6.2f} GB/s in batches of {batch}")


def write_photographs(folder: Path, n: int) -> list[Path]:
    """JPEGs of 500x375 pixels: smooth fields with a little noise, which cost what photographs cost to decode."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    paths = []
    for number in range(n):
        coarse = generator.integers(0, 256, size=(24, 32, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.clip(np.asarray(image) + generator.normal(0, 8, size=(375, 500, 3)), 0, 255).astype(np.uint8)
        paths.append(folder / f"{number:06d}.jpg")
        Image.fromarray(noisy).save(paths[-1], quality=90)
    return paths


def child_seconds() -> float:
    """Processor time of this process and of the workers, which are counted once they have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def runnable_seconds(store: ImageStore) -> float:
    """Seconds for which the store's workers had work, running or waiting for a core that others held (Linux only)."""
    processes = [] if store._decoders is None else store._decoders._processes
    records = [Path(f"/proc/{process.pid}/schedstat") for process in processes]
    return sum(sum(map(int, record.read_text().split()[:2])) / 1e9 for record in records if record.exists())


def image_folder(paths: list[Path]) -> None:
    """First pass and second pass over the same images, 256 at a time."""
    framing = Framing(256, 224)
    times = []
    workers = os.cpu_count() or 1
    for which in ("first pass (decoding)", "second pass (cache)"):
        busy, begun = child_seconds(), time.perf_counter()
        store = ImageStore(paths, framing)
        order = np.random.default_rng(0).permutation(len(paths))
        size = sum(store.read(order[start : start + 256]).nbytes for start in range(0, len(paths), 256))
        elapsed = time.perf_counter() - begun
        runnable = runnable_seconds(store) / elapsed / workers
        del store
        cores = (child_seconds() - busy) / elapsed
        times.append(elapsed)
        rate = len(paths) / elapsed
        print(f"{which:<34}{rate:8,.0f} images/s, {size / elapsed / 1e9:5.2f} GB/s, {cores:.1f} cores busy", end="")
        print(f"; workers had work {100 * runnable:.0f} % of the time" if runnable else "")
    print(f"the cache is {times[0] / times[1]:.0f} times faster ({workers} cores); {peak_memory():.2f} GB at most")


def large(paths: list[Path], folder: Path, n: int) -> None:
    """Stream ``n`` images of 224 pixels out of a cache and report the peak memory of this process."""
    folder.mkdir()
    names = [folder / f"{number:06d}.jpg" for number in range(n)]
    for number, name in enumerate(names):
        os.link(paths[number % len(paths)], name)  # many names for few files: a file has only so many links
    store = ImageStore(names, Framing(256, 224))
    assert store._cache is not None
    np.ones(n, dtype=np.uint8).tofile(store._cache / "decoded")
    order = np.random.default_rng(0).permutation(n)
    begun = time.perf_counter()
    size = sum(store.read(order[start : start + 256]).nbytes for start in range(0, n, 256))
    elapsed = time.perf_counter() - begun
    print(f"{n:,} images of 224 pixels: {size / 1e9:.1f} GB in {elapsed:.0f} s, peak memory {peak_memory():.2f} GB")


def peak_memory() -> float:
    """The most memory this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--large", type=int, default=0)
    arguments = parser.parse_args()
    digit, synthetic = load("digit", form="embedded"), load("synthetic", dimension=400, n_arms=10)
    in_memory("digit, source (3, 28, 28) uint8", digit.source)
    in_memory("digit, target (3, 28, 28) uint8", digit.target)
    in_memory("digit, target, batches of 1024", digit.target, batch=1024)
    in_memory("synthetic, (400,) float64", synthetic.source)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DABAND_CACHE"] = str(Path(scratch) / "cache")
        paths = write_photographs(Path(scratch) / "photographs", arguments.images)
        image_folder(paths)
        if arguments.large:
            large(paths, Path(scratch) / "many", arguments.large)


if __name__ == "__main__":
    main()
