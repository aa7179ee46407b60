"""`fedwsq deploy`, as far as it goes without starting Flower."""

import shlex
import subprocess
import sys
import tomllib
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.common.config import parse_config_args

from fedwsq.cli import main
from fedwsq.cli.work.deploy import node_command
from fedwsq.cli.work.deploy_local import overrides_of, split_plan
from fedwsq.core.errors import ConfigError
from fedwsq.flower.local import APP, Local, config_text

WITHOUT_FLOWER = """
import sys
sys.modules["flwr"] = None
from fedwsq.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_flower_it_says_how_to_get_it(tmp_path):
    for words in (["certs", "x"], ["local"]):
        command = [sys.executable, "-c", WITHOUT_FLOWER, "deploy", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == "fedwsq: fedwsq deploy needs Flower: pip install 'fedwsq[flower]'\n"
    assert not list(tmp_path.iterdir())


def test_every_command_has_help_with_an_example(capsys):
    for name in ("certs", "local", "node"):
        with pytest.raises(SystemExit):
            main(["deploy", name, "--help"])
        assert f"\n  fedwsq deploy {name} " in capsys.readouterr().out
    assert main(["deploy"]) == 0
    assert "COMMAND" in capsys.readouterr().out


def test_certs(in_empty_folder, capsys):
    assert main(["deploy", "certs", "mine", "--host", "fl.example.org"]) == 0
    assert capsys.readouterr().out.split() == [
        "mine/ca.key",
        "mine/ca.crt",
        "mine/server.key",
        "mine/server.pem",
    ]
    assert main(["deploy", "certs", "mine", "--host", "https://fl.example.org"]) == 2
    assert "without a port or https://" in capsys.readouterr().err
    for days in ("0", "36501", "99999999"):
        assert main(["deploy", "certs", "other", "--days", days]) == 2
        said = f"days is {days}, must be from 1 to 36500, a hundred years"
        assert said in capsys.readouterr().err
    assert not Path("other").exists()
    assert main(["deploy", "certs", "other", "--days", "36500"]) == 0


def test_certs_where_nothing_can_be_written(in_empty_folder, capsys):
    Path("file").touch()
    assert main(["deploy", "certs", "file/certs"]) == 2
    said = "fedwsq: cannot write file/certs: Not a directory; choose another folder\n"
    assert capsys.readouterr().err == said


def test_a_nodes_command(tmp_path):
    np.savez(tmp_path / "my data.npz", x=[0.0], y=[0])
    args = Namespace(
        data=str(tmp_path / "my data.npz"),
        client=2,
        superlink="fl.example.org:8000",
        ca=Path("ca.crt"),
        key=Path("key"),
        insecure=False,
        keys=None,
        memory=None,
        port=9095,
    )
    words = node_command(args)
    assert words[0] == "flower-supernode"
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--superlink"] == "fl.example.org:8000"
    assert options["--root-certificates"] == "ca.crt"
    assert options["--auth-supernode-private-key"] == "key"
    assert options["--port"] == "9095"
    client, data = shlex.split(options["--node-config"])
    assert client == "client=2"
    assert data == f"data={tmp_path / 'my data.npz'}"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["node", "--data", "no.npz"], "--data is no.npz, which is not there"),
        (["node", "--data", "m:f", "--ca", "ca.crt"], "--ca FILE, to know its SuperLink"),
        (["node", "--data", "m:f", "--client", "-1"], "--client is -1"),
        (["local", "--nodes", "0"], "--nodes is 0, must be at least 1"),
        (["local", "data.clients=5"], "say --nodes N instead"),
        (["local", "data.partition=own"], "fedwsq deploy node"),
        (["local", "clients_per_round=4"], "cannot sample more clients than there are"),
        (["local", "nosuch"], "nosuch"),
        (["local", "--tls", "--simulation"], "simulated nodes are in one process"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(words, reason, in_empty_folder, capsys):
    if words[0] == "node":
        words = [*words, "--superlink", "a:1", "--insecure"]
        if "--client" not in words:
            words += ["--client", "0"]
    assert main(["deploy", *words]) == 2
    assert reason in capsys.readouterr().err
    assert not list(in_empty_folder.iterdir())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("split.json", "--data is split.json, must be an .npz file, a folder of images or module"),
        ("mine.npz", "--data is mine.npz, which is no .npz file: numpy.savez writes such"),
        ("a:b.npz", "--data is a:b.npz, which is no .npz file"),
    ],
)
def test_what_is_no_data_is_refused_before_keys_are_made(name, reason, in_empty_folder, capsys):
    (in_empty_folder / name).write_text("{}")
    words = ["--superlink", "a:1", "--insecure", "--client", "0", "--key", "key"]
    assert main(["deploy", "node", "--data", name, *words]) == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in in_empty_folder.iterdir()] == [name]


def test_a_folder_with_other_things_is_left_alone(in_empty_folder, capsys):
    (in_empty_folder / "mine").touch()
    assert main(["deploy", "local", "--out", "."]) == 2
    assert "holds other things; choose a new folder" in capsys.readouterr().err
    assert [path.name for path in in_empty_folder.iterdir()] == ["mine"]


def test_nodes_are_told_the_users_settings_but_the_split():
    words = ["method=fedavg", "data.partition.alpha=0.1", "uplink.codec={ name = 'ecq' }"]
    plan = split_plan("quickstart", words, 4)
    assert (plan.data.clients, plan.clients_per_round) == (4, 4)
    assert plan.data.partition.options["alpha"] == 0.1
    assert shlex.split(overrides_of(words, plan)) == [
        "method=fedavg",
        "uplink.codec={ name = 'ecq' }",
        "data.clients=4",
        "clients_per_round=4",
        "data.partition=own",
    ]


def test_a_nodes_config_is_read_by_flower_as_it_was_meant():
    config = {"client": 3, "data": r'/a "b"\c=d.npz', "memory": "m"}
    assert parse_config_args([config_text(config)]) == config
    with pytest.raises(ConfigError, match="has a quote in it"):
        config_text({"data": "it's.npz"})


def test_a_runs_config_is_read_by_flower_as_it_was_meant(tmp_path):
    here = Local(tmp_path, 1, False, [1, 2])
    told = {"config": "quickstart", "overrides": """a=1 'b={ "x" }'"""}
    here.prepare(told)
    found = parse_config_args([here.run()[-1]])
    assert found == {**told, "test-data": "plan", "out": str(tmp_path / "run")}


def test_the_app_takes_what_the_example_takes():
    example = Path(__file__).parents[2] / "examples" / "flower" / "pyproject.toml"
    theirs, ours = tomllib.loads(example.read_text()), tomllib.loads(APP)
    assert theirs["tool"]["flwr"] == ours["tool"]["flwr"]
