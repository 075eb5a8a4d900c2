"""The study of labels: its own simulation agrees with the library."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import labels


@pytest.mark.parametrize("population", [*labels.make_hard()], ids=lambda population: population.name)
def test_candidates_are_simulated_as_the_library_does_it(population):
    sets = 150
    ours = labels.try_candidates(population, labels.SHARES, 20 * sets, 0)
    theirs = labels.simulate(population, sets, 1, "proposed")
    error = 4 * (0.25 / sets) ** 0.5
    assert abs(ours.found - theirs.found) < error
    assert abs(ours.kept - theirs.kept) < error
    assert abs(ours.labels - theirs.labels) < 2
    assert ours.wrong < 0.1 + 3 * (0.09 / 20 / sets) ** 0.5


def test_random_labels_are_counted_where_there_is_a_guarantee():
    easy = labels.Population("easy", np.arange(1000.0), np.arange(1000) >= 990)
    goal = labels.simulate(easy, 20, 0, "proposed")
    assert goal.found == 1
    assert labels.count_random(easy, goal, 20) in {"45", "60"}
    assert labels.count_random(easy, goal._replace(found=0.0), 20) == "–"
