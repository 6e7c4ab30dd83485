"""A small launcher for tests of verbs: its files list fields of model and strategy by line."""

import json

from shardwise.config.launch import Launch, NotUnderstood
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import Launcher, LaunchFile
from shardwise.launchers.stacks import STACKS
from shardwise.planning.nearest import set_fields

MARK = "#!fake "
STACK = "torchtitan-2025"


def _lines(text):
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def read(text):
    """Read the model, the strategy, and what is neither."""
    model, fields, left = None, {}, []
    for name, value in _lines(text.text):
        if name == "model":
            model = Model.validated(json.loads(value), source=text.source)
        elif name in Strategy.model_fields:
            try:
                fields[name] = json.loads(value)
            except ValueError:
                fault = Fault.of(name, value, "is no JSON", text.source)
                raise InputError(fault) from None
        else:
            because = "shardwise does not know the option"
            left.append(NotUnderstood(option=name, value=value, because=because))
    if text.gpus is not None and "gpus" not in fields:
        fields["gpus"] = text.gpus
    return Launch(
        launcher="fake",
        release="1.0",
        source=text.source,
        model=model or text.model,
        strategy={"stack": STACK} | fields,
        not_understood=tuple(left),
    )


def faults(model, strategy):
    """No option for more than two chunks, for cp together with pp, nor for tied embeddings."""
    if model.tied_embeddings:
        yield Fault.of("tied_embeddings", True, "Fake has no option for it", "model")
    if strategy.vpp > 2:
        yield Fault.of("vpp", strategy.vpp, "Fake has no option for more than 2", "strategy")
    if strategy.cp > 1 and strategy.pp > 1:
        yield Fault.of("cp", strategy.cp, "Fake has no cp in a pipeline", "strategy")


def write(plan, release, ending):
    """Write a launch file, and a file of settings next to it.

    Only release 0.9 has full recompute, and none has mxfp8.
    """
    plain = plan.strategy.to_dict()
    if release == "1.0" and plain["recompute"] == "full":
        raise InputError(Fault.of("recompute", "full", "Fake 1.0 has none", "strategy"))
    if plain["quantization"] == "mxfp8":
        problem = f"Fake {release} has no option for it"
        raise InputError(Fault.of("quantization", "mxfp8", problem, "strategy"))
    lines = [f"{MARK}{release} {ending}", *(f"# {one}" for one in plan.comments)]
    lines += [f"model = {json.dumps(plan.model.to_dict())}"]
    names = [*set_fields(plan.model, plan.strategy), "stack"]
    lines += [f"{name} = {json.dumps(plain[name])}" for name in names]
    return (
        LaunchFile(ending=ending, text="\n".join(lines) + "\n", executable=True),
        LaunchFile(ending="-more.env", text="export NCCL_DEBUG=WARN\n"),
    )


STACKS["fake"] = STACK
LAUNCHER = Launcher(
    name="fake",
    title="Fake",
    releases=("1.0", "0.9"),
    endings=(".fake", ".sh"),
    recognise=lambda text, _: text.startswith(MARK),
    read=read,
    faults=faults,
    write=write,
    says=frozenset(Strategy.model_fields),
)
