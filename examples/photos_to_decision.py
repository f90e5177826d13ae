"""From folders of photographs, without labels of the new camera, to a decision on one image
file.
"""

from pathlib import Path

import numpy as np
from PIL import Image

import daband


def photograph(rng: np.random.Generator, kind: str, *, is_dark: bool) -> Image.Image:
    row, column = np.mgrid[:48, :64] + rng.integers(0, 8, (2, 1, 1))
    stripes = {
        "rows": row // 6 % 2,
        "columns": column // 6 % 2,
        "checks": (row // 6 + column // 6) % 2,
    }[kind]
    light = 0.15 + 0.2 * stripes if is_dark else 0.3 + 0.6 * stripes
    return Image.fromarray(
        (255 * np.clip(light[..., None] + rng.normal(0, 0.05, 3), 0, 1)).astype(np.uint8)
    )


rng = np.random.default_rng(0)
for number in range(240):
    kind = ["rows", "columns", "checks"][number % 3]
    for path, is_dark in ((Path("here", kind), False), (Path("new_camera"), True)):
        path.mkdir(parents=True, exist_ok=True)
        photograph(rng, kind, is_dark=is_dark).save(path / f"{number}.png")
pair = daband.domains.from_images(source="here", target="new_camera", framing=20)
policy = daband.DABand.for_pair(pair, recipe="small", seed=0)
daband.train(policy, source=pair.source, target=pair.target, episodes=8)
daband.export(policy, "camera.daband", pair=pair, domain="target")
deployed = daband.load_deployed("camera.daband")
print(
    [deployed.decide(Path(f"new_camera/{number}.png").read_bytes()).arm_name for number in range(6)]
)
