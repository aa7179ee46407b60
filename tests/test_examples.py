"""The worked examples, run as their first lines say; only for fewer rounds."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from harness import rows

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
RUNS = [example for example in EXAMPLES if example.stem != "ddp"]  # which is in tests/parts


def test_there_are_examples():
    assert [example.stem for example in EXAMPLES] == ["ddp", "tabular", "text"]


@pytest.mark.slow
@pytest.mark.parametrize("example", RUNS, ids=lambda path: path.stem)
def test_an_example_learns(example, tmp_path):
    assert len(example.read_text().splitlines()) < 80
    assert f"python examples/{example.name} [OUT] [ROUNDS]" in example.read_text()
    command = [sys.executable, example, tmp_path / "out", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("test accuracy 0.")
    found = rows(tmp_path / "out")
    assert [row["failures"] for row in found] == [{}] * 3
    assert found[-1]["test_loss"] < found[0]["test_loss"] - 0.04
    assert found[-1]["uplink_bytes"] < found[-1]["uplink_bytes_float32"] / 4


def test_the_notebook_is_kept_without_outputs():
    cells = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    assert {(cell.execution_count, *cell.outputs) for cell in cells} == {(None,)}


def executed(notebook, folder):
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, resources=place, kernel_name="python3").execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.mark.slow
def test_a_cell_that_fails_is_named(tmp_path):
    cell = nbformat.v4.new_code_cell(
        "import fedwsq, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(64, classes)\n"
        "    def forward(self, x):\n"
        "        if self.training and len(x) > 8:\n"  # a trial has no more
        "            raise ValueError('no')\n"
        "        return super().forward(x.flatten(1))\n"
        "try:\n"
        "    fedwsq.run(model=Net, model_standardize='none', uplink_select='weights')\n"
        "except fedwsq.FedwsqError as error:\n"
        "    print(error)\n"
    )
    outputs = executed(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
    shown = "".join(output.text for output in outputs)
    why = "ValueError: no (notebook cell:7, in forward)"
    assert shown.count(why) == 4  # three rounds, and then it gives up
    assert f"3 rounds in a row without a reply; the last reason was: {why}; whole" in shown


@pytest.mark.slow
def test_the_notebook_learns_and_plots(tmp_path):
    outputs = executed(nbformat.read(NOTEBOOK, 4), tmp_path)
    shown = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "\rruns/quickstart-1: rounds 1 to 15\n" in shown
    assert "other processes cannot import these objects: model, data, split; " in shown
    assert "\rstarting; client 1/5\r" in shown
    assert "\rround 15/15: accuracy 0." in shown
    assert any("image/png" in output.get("data", ()) for output in outputs)

    found = rows(tmp_path / "runs" / "quickstart-1")
    assert [row["failures"] for row in found] == [{}] * 15
    assert found[-1]["test_accuracy"] > 0.8
    assert f"accuracy {found[-1]['test_accuracy']:.3f}, " in shown


def test_a_benchmark_says_which_parts_it_has():
    command = [sys.executable, Path(__file__).parents[1] / "benchmarks" / "foundation.py", "sise"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid choice: 'sise' (choose from" in done.stderr
