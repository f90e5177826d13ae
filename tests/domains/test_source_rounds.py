import numpy as np

import daband
from daband.domains._source_rounds import read_rewarded_rounds


def test_held_out_rounds_that_are_listed_class_by_class_have_every_class():
    labels = np.repeat(np.arange(4), 1500)  # sorted, as folders of images are
    contexts = np.eye(4)[labels]
    pair = daband.domains.from_arrays(source=(contexts, labels), target=contexts, source_test=0.5)
    seen, rewards = read_rewarded_rounds(pair.source_test, 400, seed=0)
    assert len(seen) == 400
    np.testing.assert_allclose(rewards.mean(axis=0), 0.25, atol=0.05)
