"""torchtitan: TOML files up to v0.2.2, Python configurations from v0.3.0 on, and logs."""

from shardwise.config.launch import Launch
from shardwise.errors import Fault, InputError, refuse
from shardwise.launchers.launch import (
    NO_OPTIONS,
    PLACED,
    Launcher,
    LaunchFile,
    LaunchPlan,
    LaunchText,
    fields_named,
)
from shardwise.launchers.torchtitan.fields import (
    EAGER_STACK,
    plan_faults,
    release_faults,
)
from shardwise.launchers.torchtitan.models import PYTHON_RELEASE, TOML_RELEASE
from shardwise.launchers.torchtitan.options import ONE_TO_ONE
from shardwise.launchers.torchtitan.python_reader import is_configuration, read_python
from shardwise.launchers.torchtitan.python_writer import write_python
from shardwise.launchers.torchtitan.script_reader import is_script, read_script
from shardwise.launchers.torchtitan.toml_files import NAME, is_toml, read_toml, write_toml

__all__ = ["LAUNCHER"]


def _recognise(text: str, source: str) -> bool:
    if source.endswith(".py"):
        return is_configuration(text)
    return is_toml(text) or is_script(text)


def _read(launch: LaunchText) -> Launch:
    if launch.source.endswith(".py"):
        return read_python(launch)
    return read_script(launch) if is_script(launch.text) else read_toml(launch)


def _write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Each release has one form of configuration."""
    own = PYTHON_RELEASE if ending == ".py" else TOML_RELEASE
    refuse(release_faults(plan.model, plan.strategy, own))
    if release != own:
        form, other = ("Python", ".py") if release == PYTHON_RELEASE else ("TOML", ".toml")
        problem = f"torchtitan {release} reads {form}; the output must end in {other}"
        raise InputError(Fault.of("release", release, problem))
    return (write_python(plan) if ending == ".py" else write_toml(plan),)


SAYS = fields_named(
    "gpus dp vpp micro_batch_size global_batch_size quantization zero dp_shard fsdp_reshard"
    " first_stage_layers last_stage_layers stage_layers embedding_as_layer loss_as_layer loss"
    " offload_optimizer weight_dtype master_dtype moment_dtype gradient_dtype reduce_dtype"
    " compile cuda_graphs"
).union(one.field for one in ONE_TO_ONE)
LAUNCHER = Launcher(
    name=NAME,
    title="torchtitan",
    releases=(TOML_RELEASE, PYTHON_RELEASE),
    other_stacks=(EAGER_STACK,),
    endings=(".toml", ".py"),
    recognise=_recognise,
    read=_read,
    faults=plan_faults,
    write=_write,
    yours="data set, tokenizer, learning rate and schedule, training.steps, checkpoints",
    says=SAYS,
    ignores=NO_OPTIONS | PLACED,
)
