"""Heat maps: every cell is printed, the best is framed, labels must fit."""

import numpy as np
import pytest
from svg import letters

from hierspec_lab.plotting.heat_map import heat_map

pytestmark = pytest.mark.usefixtures("matplotlib")


def test_a_heat_map_prints_cells_labels_and_frames_the_best(tmp_path):
    values = [[1.25, np.nan], [0.5, 2.0]]
    heat_map(values, ["up", "down"], [3, 7], tmp_path / "map.svg", "A title", centre=1.0)
    said = letters((tmp_path / "map.svg").read_bytes())
    for part in ("1.25", "0.50", "2.00", "up", "down", "3", "7", "A title"):
        assert part in said
    assert not any("nan" in one for one in said)
    framed = (tmp_path / "map.svg").read_text().count("stroke-width: 2.5")
    heat_map(values, ["up", "down"], [3, 7], tmp_path / "none.svg", "A title", best=None)
    assert framed == (tmp_path / "none.svg").read_text().count("stroke-width: 2.5") + 1


def test_a_heat_map_refuses_labels_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match="2 row labels"):
        heat_map([[1.0]], ["a", "b"], ["c"], tmp_path / "map.svg", "t")
    with pytest.raises(ValueError, match="nothing to draw"):
        heat_map([[np.nan]], ["a"], ["c"], tmp_path / "map.svg", "t")
