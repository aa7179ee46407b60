"""`fedwsq levels` of every codec, its plot, and `fedwsq ls codecs --error`."""

import sys

import pytest

from fedwsq.cli import main
from fedwsq.cli.work.levels import level_set
from fedwsq.codecs import CODECS
from fedwsq.codecs.grid import Grid
from fedwsq.codecs.levels import levels
from fedwsq.codecs.measure import usual_rates
from fedwsq.core.errors import ConfigError

OPTIMAL_2 = """\
-1.2240063619
 0.0000000000
 0.7645675712
 1.7241474072
mse     0.1350576
bias    0.04
entropy 1.88191 bits
"""


def fedwsq(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def facts(out: str) -> dict[str, float]:
    lines = [line.split() for line in out.splitlines()]
    return {
        line[0]: float(line[1]) for line in lines if line[0] in ("scale", "mse", "bias", "entropy")
    }


def test_danuq_is_printed_as_it_is(capsys):
    assert fedwsq(capsys, "levels", "2", "--kind", "optimal") == (0, OPTIMAL_2, "")
    assert fedwsq(capsys, "levels", "2", "--codec", "danuq", "--kind", "optimal") == (
        0,
        OPTIMAL_2,
        "",
    )


@pytest.mark.parametrize(
    ("bits", "step", "mse", "entropy"),
    [
        (1, 1.596, 0.3634, 1.0),
        (2, 0.9957, 0.1188, 1.904),
        (3, 0.5860, 0.03744, 2.761),
        (4, 0.3352, 0.01154, 3.602),
    ],
)
def test_uniform_levels_at_the_best_scale_are_those_of_max(capsys, bits, step, mse, entropy):
    """Max (1960), table II: the best equally spaced levels for N(0, 1), 2, 4, 8 and 16 of them."""
    code, out, _ = fedwsq(capsys, "levels", str(bits), "--codec", "uq")
    found = facts(out)
    assert code == 0
    assert float(out.split()[0]) == -1
    assert "units of a packet's own scale (absmax unless set otherwise)" in out
    assert 2 / (2**bits - 1) * found["scale"] == pytest.approx(step, rel=2e-4)
    assert found["mse"] == pytest.approx(mse, rel=5e-4)
    assert found["entropy"] == pytest.approx(entropy, rel=5e-4)
    assert found["bias"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", list(CODECS))
def test_every_codec_has_levels_or_says_that_it_has_none(name):
    codec = CODECS[name]()
    if name in ("danuq", "eden") or isinstance(codec, Grid):
        for bits in usual_rates(codec):
            found = level_set(name, int(bits)).levels
            assert list(found) == sorted(found)
            assert 2 <= len(found) <= 2**bits
    else:
        with pytest.raises(ConfigError, match=f"codec {name} has no fixed levels"):
            level_set(name, 4)


def test_eden_has_lloyd_max_levels():
    assert level_set("eden", 3).levels == levels(3, "lloyd-max")


def test_a_kind_reaches_the_codec_that_has_it(capsys):
    _, plain, _ = fedwsq(capsys, "levels", "4", "--codec", "fp")
    _, other, _ = fedwsq(capsys, "levels", "4", "--codec", "fp", "--kind", "bitsandbytes")
    assert facts(other) == pytest.approx(
        {"scale": 2.5636, "mse": 0.01659, "bias": 0, "entropy": 3.6953}, rel=1e-3
    )
    assert facts(plain)["mse"] == pytest.approx(0.01268, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["4", "--codec", "float32"], "codec float32 has no fixed levels; try danuq or uq"),
        (["4", "--codec", "float32", "--kind", "paper"], "codec float32 has no fixed levels"),
        (["4", "--codec", "danuk"], "did you mean danuq?"),
        (["9", "--codec", "uq"], "uq has no 9-bit levels; it offers 1, 2, 3"),
        (
            ["4", "--codec", "uq", "--kind", "optimal"],
            "uq has no levels of kind 'optimal'; it has only one kind",
        ),
        (["4", "--codec", "uq", "--kind", "stochastic"], "uq has no levels of kind 'stochastic'"),
        (["4", "--codec", "danuq8"], "danuq8 has no 4-bit levels; it offers 8"),
    ],
)
def test_levels_that_do_not_exist_are_one_error(capsys, words, why):
    code, out, err = fedwsq(capsys, "levels", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err


@pytest.mark.parametrize(
    ("words", "name", "start"),
    [
        (["4"], "danuq.png", b"\x89PNG"),
        (["8", "--codec", "uq"], "uq.pdf", b"%PDF"),
        (["1", "--kind", "lloyd-max"], "one.svg", b"<?xml"),
    ],
)
def test_levels_are_drawn(capsys, tmp_path, words, name, start):
    code, out, err = fedwsq(capsys, "levels", *words, "--plot", str(tmp_path / name))
    assert (code, err) == (0, "")
    assert "mse" in out
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(start)
    assert len(drawn) > 4000


def test_the_drawing_shows_every_level_and_every_edge(capsys, tmp_path):
    """In an SVG each stem is a path and each marker a use of one symbol; 4 levels have 3 edges."""
    fedwsq(capsys, "levels", "2", "--plot", str(tmp_path / "two.svg"))
    text = (tmp_path / "two.svg").read_text()
    edges = text.partition('id="LineCollection_1"')[2].partition("</g>")[0]
    assert edges.count("<path") == 3
    assert text.partition('id="LineCollection_2"')[2].partition("</g>")[0].count("<path") == 4


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("levels.doc", "must end in .png, .pdf or .svg"),
        ("no/such/folder.png", "there is no folder"),
    ],
)
def test_a_drawing_that_cannot_be_is_one_error(capsys, tmp_path, name, why):
    code, out, err = fedwsq(capsys, "levels", "2", "--plot", str(tmp_path / name))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err


def test_without_matplotlib_the_error_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = fedwsq(capsys, "levels", "2", "--plot", str(tmp_path / "x.png"))
    assert (code, out) == (2, "")
    assert "pip install 'fedwsq[report]'" in err
    assert fedwsq(capsys, "levels", "2")[0] == 0


def test_ls_measures_every_codec(capsys):
    code, out, err = fedwsq(capsys, "ls", "codecs", "--error", "--numel", "4096")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    found = {
        (row[0], row[1]): [float(cell) for cell in row[2:]] for row in rows if row[0] in CODECS
    }
    assert set(found) == {
        (name, f"{rate:g}") for name, cls in CODECS.items() for rate in usual_rates(cls())
    }
    assert found["float32", "32"][:6] == [0, 0, 0, 4, 4, 4]
    normal, laplace, student, *sizes, encode, decode = found["danuq", "4"]
    assert normal == pytest.approx(0.00972, rel=0.1)
    assert normal < laplace < student
    assert sizes == pytest.approx([(2048 + 4) / 4096] * 3, rel=0.01)
    assert 0 < encode < 1000
    assert 0 < decode < 1000


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--error"], "write fedwsq ls codecs --error"),
        (["bits", "--error"], "write fedwsq ls codecs --error"),
        (["codecs", "--error", "--numel", "0"], "--numel is 0"),
    ],
)
def test_ls_measures_nothing_else(capsys, words, why):
    code, out, err = fedwsq(capsys, "ls", *words)
    assert (code, out) == (2, "")
    assert why in err
