import pytest
import torch

from daband.errors import InvalidInput
from daband.neural.encoders._augmentation import Augmentation, augment


def augmented(images, settings):
    return augment(
        images, settings, torch.rand(len(images), settings.count_draws(tuple(images.shape[1:])))
    )


def test_a_shift_moves_all_pixels_of_an_image_by_whole_pixels():
    image = torch.arange(8 * 8, dtype=torch.float32).view(1, 1, 8, 8) / 64
    moved = augmented(image.repeat(400, 1, 1, 1), Augmentation(shift=2))
    inner = (moved[:, 0, 2:6, 2:6] - image[0, 0, 2:6, 2:6]) * 64
    assert (inner == inner[:, :1, :1]).all()
    displacements = {8.0 * row + column for row in range(-2, 3) for column in range(-2, 3)}
    assert set(inner[:, 0, 0].tolist()) == displacements


def test_an_affine_map_copies_whole_pixels_and_keeps_the_centre():
    images = torch.rand(50, 3, 9, 9)
    moved = augmented(images, Augmentation(affine=0.3))
    assert not torch.equal(moved, images)
    for before, after in zip(images, moved, strict=True):
        torch.testing.assert_close(after[:, 4, 4], before[:, 4, 4])
        colours = set(map(tuple, before.flatten(1).T.tolist()))
        assert set(map(tuple, after.flatten(1).T.tolist())) <= colours


@pytest.mark.parametrize(
    "setting", [{"affine": 0.5}, {"affine": -0.1}, {"shift": -1}, {"contrast": 2.0}]
)
def test_a_strength_out_of_range_is_refused(setting):
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        Augmentation(**setting)
