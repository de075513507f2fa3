"""A run draws its curves and table in a notebook, here in a Jupyter kernel as users have it."""

import math
import re
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient

from vaak.callbacks.notebook import MOST_POINTS, WIDTH, curves_svg

SVG = "{http://www.w3.org/2000/svg}"
CELL = """
import torch
import vaak
from vaak.core.batch import Term

def loss(model, batch):
    return Term((model(batch["x"]) - 1).square().sum(), per="example")

task = vaak.SimpleTask(data={"train": [{"x": [0.1 * n, 1.0]} for n in range(16)], "valid": [{"x": [0.2, 1.0]}]},
                       model=lambda: torch.nn.Linear(2, 1), loss=loss)
options = {"max_steps": 8, "batch_size": 4, "learning_rate": 0.1, "validation": {"interval": 4}}
logging = {"interval": 1, "tensorboard": False}
"""


def drawn(curves):
    return ElementTree.fromstring(curves_svg(curves).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"'))


def test_curves_are_inside_of_their_picture_and_end_at_the_last_step():
    curves = {"train": [(step, 5.0 / step) for step in range(1, 5001)], "val_loss": [(2500, 0.1), (5000, 3.0)]}
    svg = drawn(curves)
    lines = [
        [tuple(map(float, one.split(","))) for one in line.get("points").split()] for line in svg.iter(f"{SVG}polyline")
    ]
    assert len(lines[0]) <= MOST_POINTS
    assert all(0 <= x <= WIDTH and 0 <= y <= 200 for line in lines for x, y in line)
    assert lines[0][-1][0] == lines[1][-1][0] == WIDTH - 10
    assert lines[0][0][1] < lines[0][-1][1], "a loss that falls goes down"
    assert {"0.001", "5", "step 5,000"} <= {text.text for text in svg.iter(f"{SVG}text")}


def test_what_is_not_finite_is_left_out_and_one_point_is_no_curve():
    assert curves_svg({"train": [(1, math.nan), (2, math.inf), (3, 1.0)], "val_loss": []}) == ""
    assert (
        len(
            drawn({"train": [(1, 2.0), (2, math.nan), (3, 1.0)], "val_loss": []})
            .find(f"{SVG}polyline")
            .get("points")
            .split()
        )
        == 2
    )


@pytest.mark.slow  # a kernel takes seconds
def test_a_notebook_shows_curves_in_place_of_lines_and_a_resumed_run_those_before_it(tmp_path):
    cells = [CELL, "run = vaak.fit(task, 'run', logging=logging, **options)"]
    cells += ["run = vaak.fit(task, 'run', logging=logging, resume=True, **{**options, 'max_steps': 12})"]
    cells += ["print(len(run.history), len(run.history('step')))"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(book, timeout=600, coalesce_streams=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell, steps in zip(book.cells[1:3], (8, 12), strict=True):
        (shown,) = (one.data["text/html"] for one in cell.outputs if one.output_type == "display_data")
        assert f"step {steps}/{steps}" in shown
        assert len(re.findall(r'points="([^"]+)"', shown)[0].split()) == steps
        said = "".join(one.get("text", "") for one in cell.outputs)
        assert "steps" in said
        assert "step 1/" not in said
    assert "step 1/8" in (tmp_path / "run" / "train.log").read_text()
    assert book.cells[3].outputs[0].text.split()[1] == "12"
