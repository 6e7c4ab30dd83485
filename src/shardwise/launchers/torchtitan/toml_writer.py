"""Plans as TOML files of torchtitan v0.2.2."""

from collections.abc import Iterator, Mapping

from shardwise.config.plain import as_json, plain
from shardwise.launchers.launch import LaunchFile, LaunchPlan
from shardwise.launchers.torchtitan.flavors import TOML_RELEASE
from shardwise.launchers.torchtitan.from_plan import STEPS, options_of
from shardwise.launchers.torchtitan.header import header
from shardwise.launchers.torchtitan.options import Options, OptionValue

# Options that make a run short, quiet and independent of other files, and defaults to hold on to.
_RUN: Mapping[str, OptionValue] = {
    "profiling.enable_profiling": False,
    "metrics.log_freq": 10,
    "checkpoint.enable": False,
    "validation.enable": False,
    "training.dataset": "c4_test",
    "training.steps": STEPS,
    "training.dtype": "float32",
    "training.mixed_precision_reduce": "float32",
    "optimizer.implementation": "fused",
    "lr_scheduler.warmup_steps": 2,
    "parallelism.disable_loss_parallel": False,
    "parallelism.context_parallel_load_balancer": "headtail",
    "activation_checkpoint.early_stop": False,
    "debug.moe_force_load_balance": False,
}
_ORDER = (
    *("job", "profiling", "metrics", "model", "optimizer", "lr_scheduler", "training"),
    *("parallelism", "checkpoint", "activation_checkpoint", "compile", "quantize"),
    *("validation", "debug"),
)
_TOML = "FILE.toml"


def write_toml(plan: LaunchPlan) -> LaunchFile:
    """Return the TOML of a plan that v0.2.2 can run."""
    options: Options = {
        "job.description": f"{plan.model.name} on {plan.strategy.gpus} x {plan.system.name}",
        **_RUN,
        **options_of(plan, TOML_RELEASE),
    }
    above = header(
        plan,
        TOML_RELEASE,
        f"--job.config_file {_TOML}",
        f"in a checkout of torchtitan {TOML_RELEASE} (its test tokenizer and data are used), "
        f"{_TOML} being this file",
    )
    return LaunchFile(ending=".toml", text=above + "".join(_sections(options)))


def _sections(options: Options) -> Iterator[str]:
    """Sections of a TOML file with their options, in the order of torchtitan's own files."""
    tables: dict[str, dict[str, OptionValue]] = {}
    for name, value in options.items():
        section, _, key = name.rpartition(".")
        tables.setdefault(section, {})[key] = value
    for section in sorted(tables, key=lambda name: (_ORDER.index(name.split(".")[0]), name)):
        yield f"\n[{section}]\n"
        for key, value in tables[section].items():
            yield f"{key} = {_as_toml(plain(value))}\n"


def _as_toml(value: object) -> str:
    """A value as TOML; lists of lists on lines of their own."""
    if isinstance(value, list):
        items = [_as_toml(item) for item in value]
        if value and isinstance(value[0], list):
            return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    if isinstance(value, str):
        return as_json(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
