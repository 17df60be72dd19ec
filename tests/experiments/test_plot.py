"""Figures: seeds are averaged at common steps, and every variant has its panel."""

import numpy as np

from experiments.plot import mean_curve, plot_study


def test_D09_seeds_with_different_steps_are_averaged_at_common_steps():
    first = [0, 10, 20], [0, 100, 200]
    second = [0, 5, 15, 20], [0, 0, 100, 100]
    # At 10 the second is half way between 0 at 5 and 100 at 15: (100 + 50) / 2; by row it would be (100 + 0) / 2.
    grid, mean = mean_curve([first, second], num_points=3)
    np.testing.assert_allclose(grid, [0, 10, 20])
    np.testing.assert_allclose(mean, [0, 75, 150])


def test_D09_no_mean_beyond_what_every_seed_covers():
    first = [0, 10, 20], [0, 100, 200]
    shorter = [5, 15], [0, 100]
    grid, mean = mean_curve([first, shorter], num_points=3)
    np.testing.assert_allclose(grid, [5, 10, 15])
    # (50 + 0) / 2, (100 + 50) / 2, (150 + 100) / 2
    np.testing.assert_allclose(mean, [25, 75, 125])


def test_D09_seeds_without_common_steps_have_no_mean():
    for curves in ([], [([], [])], [([0, 1], [0, 1]), ([2, 3], [0, 1])], [([0, 1], [0, 1]), ([], [])]):
        grid, mean = mean_curve(curves)
        assert len(grid) == len(mean) == 0


def test_a_figure_shows_every_variant_and_seed(tmp_path):
    from matplotlib import pyplot as plt

    curve = {"env_steps": [10, 20], "episode_return": [0.0, 1.0]}
    variants = [{"label": f"variant {i}", "runs": [{"evaluation": curve, "training": curve}] * 2} for i in range(4)]
    result = {"title": "A study", "measure": "final", "threshold": 0.5, "columns": 3, "variants": variants}
    plot_study(result, tmp_path / "study.png")
    image = plt.imread(tmp_path / "study.png")
    assert image.std() > 0.01
    assert not plt.get_fignums()
