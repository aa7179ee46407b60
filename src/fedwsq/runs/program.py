"""A run out of a program or a notebook: `fedwsq.run`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from fedwsq.core.errors import ConfigError
from fedwsq.core.files import save_tensors
from fedwsq.federation.record import RoundRecord
from fedwsq.plan import PLACES, Overrides, Plan, make_plan, read_config
from fedwsq.plan.read import as_overrides, as_path
from fedwsq.plan.settings import DataPlan, ModelPlan
from fedwsq.runs import here
from fedwsq.runs.directory import folder_for, make_folder, require_free, require_named
from fedwsq.runs.objects import Objects, setting
from fedwsq.runs.result import Result, result_of
from fedwsq.runs.run import Listener, Run
from fedwsq.runs.show import way_to_show

START = "start.safetensors"  # the weights of a model that was given as an object


def run(
    config: Plan | str | Path = "quickstart",
    overrides: Overrides = (),
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    workers: int = 0,
    device: str | None = None,
    on_round: Callable[[RoundRecord], None] | Sequence[Callable[[RoundRecord], None]] = (),
    progress: bool = True,
    debug: bool = False,
    **settings: object,
) -> Result:
    """Run a plan, a TOML file or a shipped config in a directory; says what it came to.

        fedwsq.run("quickstart", {"uplink.bits": 1, "rounds": 20}, out="runs/one-bit")
        fedwsq.run(model=Net, data=(x, y), method="fedwsq", bits=1, rounds=20, training_lr=0.05)

    Settings are overrides by dotted key, or keywords: those of the plan (`rounds`, `seed`, ...),
    those of its tables with an underscore (`training_lr`, `uplink_select`), and

    - `model`: a class or a function that builds one, an instance (its weights are the start unless
      `model_init` says otherwise: "" is from the seed), or a name;
    - `data`: a `Dataset`, (x, y), (x_train, y_train, x_test, y_test), a function, or a name;
    - `split`: a list with the indices of every client, a function, or a name; `clients`: how many;
    - `algorithm`, `codec`: an instance or a class, or a name; `bits`, `method`.

    What worker processes cannot import by name trains in this process, which it says. `out` is by
    default the first free of runs/CONFIG-N. `on_round` is called with the record of every round;
    what it raises ends the run, which can be resumed: `resume` is the directory of one, and takes
    the same objects again. `debug` ends it at the first failure of a client.
    """
    listeners = as_listeners(on_round)
    # A debugger, and whoever reads a traceback, wants one process.
    processes = as_workers(workers)
    call = Call(Objects(by_key(overrides, settings)), 1 if debug else processes, device)
    if resume is not None:
        if config != "quickstart" or out is not None:
            raise ConfigError(f"resume = {resume} goes on with its own config, in its own folder")
        opening = call.resume(as_path(resume, "resume"))
    else:
        require_named(out)
        folder = None if out is None else as_path(out, "out")
        opening = call.create(config, folder)
    with opening as opened:
        return follow(opened, call.notes(opened), listeners, progress, debug)


def as_listeners(on_round: object) -> list[Listener]:
    """One function or several."""
    several = on_round if isinstance(on_round, Sequence) else [on_round]
    for each in several:
        if not callable(each):
            raise ConfigError(
                f"on_round is {each!r}; it takes a function of a round's record, or a list of them"
            )
    return list(several)


def as_workers(workers: object) -> int:
    """How many processes were asked for; also where objects keep a run in this one."""
    # To Python, true is a number too.
    if type(workers) is not int or workers < 0:
        raise ConfigError(
            f"workers is {workers!r}, must be a whole number, at least 1 (0: as many as cores)"
        )
    return workers


def by_key(overrides: Overrides, settings: Mapping[str, object]) -> dict[str, object]:
    """All settings of a call by dotted key; a keyword wins over an override."""
    given = as_overrides(overrides)
    keywords: dict[str, str] = {}
    for keyword, value in settings.items():
        key = setting(keyword)
        if key in keywords:
            raise ConfigError(
                f"{key} is given twice, as {keywords[key]} and as {keyword}; keep one of them"
            )
        keywords[key] = keyword
        given[key] = value
    return {key: str(x) if isinstance(x, Path) else x for key, x in given.items()}


@dataclass(frozen=True)
class Call:
    """What `run` was asked for, and where."""

    objects: Objects
    workers: int
    device: str | None

    @property
    def processes(self) -> int:
        return 1 if self.objects.held else self.workers

    @contextmanager
    def create(self, config: Plan | str | Path, out: Path | None) -> Iterator[Run]:
        if isinstance(config, Plan) and self.objects.settings:
            raise ConfigError(
                "overrides are for a config; a plan is changed with dataclasses.replace before it "
                "is run"
            )
        name = "plan" if isinstance(config, Plan) else as_path(config, "config").stem
        with (
            here.holding(self.objects.held),
            folder_for(out, name) as folder,
            self._start(folder) as start,
        ):
            plan = config if isinstance(config, Plan) else self._plan(config, start)
            with Run.create(plan, folder, self.processes, self.device or "auto") as opened:
                yield opened

    @contextmanager
    def resume(self, folder: Path) -> Iterator[Run]:
        objects = self.objects
        changes = {key: x for key, x in objects.settings.items() if key not in objects.given}
        for key in changes:
            if key not in ("rounds", *PLACES):
                raise ConfigError(
                    f"{key} cannot change on resume, only rounds and where files lie "
                    f"({', '.join(PLACES)}) can; start another run for that"
                )
        with (
            here.holding(objects.held),
            Run.resume(folder, changes, self.processes, self.device) as opened,
        ):
            yield opened

    def notes(self, opened: Run) -> list[str]:
        """What the caller should know before the first round."""
        done = len(opened.records)
        rounds = f"{opened.folder}: rounds {done + 1} to {opened.plan.rounds}"
        warnings = [f"warning: {text}" for text in opened.warnings]
        return [rounds, *self.objects.notes(resumed=done > 0), *warnings]

    def _plan(self, config: str | Path, start: Mapping[str, object]) -> Plan:
        settings = read_config(config)
        # What the config says of its own model or data is nothing to another one.
        for key, table in (("model.name", ModelPlan), ("data.name", DataPlan)):
            group = key.partition(".")[0]
            if key in self.objects.given and group in settings:
                own = {f.name for f in fields(table)}
                found = settings[group].items()
                settings[group] = {name: x for name, x in found if name in own}
        return make_plan(settings, {**self.objects.settings, **start})

    @contextmanager
    def _start(self, folder: Path) -> Iterator[dict[str, object]]:
        """The setting that names a file with the weights of a given model, if one was given."""
        if self.objects.start is None:
            yield {}
            return
        require_free(folder)
        new = not folder.exists()
        make_folder(folder)
        path = folder.absolute() / START
        weights = {name: p.data for name, p in self.objects.start.named_parameters()}
        save_tensors(path, weights, {"round": "0"})
        try:
            yield {"model.init": str(path)}
        finally:
            if not (folder / "config.toml").exists():  # nothing came of it
                path.unlink()
                if new:
                    with suppress(OSError):  # it holds something
                        folder.rmdir()


def follow(
    opened: Run, notes: Sequence[str], listeners: Sequence[Listener], progress: bool, debug: bool
) -> Result:
    """Go on with a run to its end, and show how it goes."""
    show = way_to_show(progress, opened.plan.rounds, talkative=bool(listeners))
    for note in notes:
        show.note(note)
    try:
        opened.go([show.on_round, *listeners], show.on_client, debug=debug)
    finally:
        show.end()
    return result_of(opened)
