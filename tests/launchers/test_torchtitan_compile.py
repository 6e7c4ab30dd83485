"""Components that torch.compile compiles in torchtitan: the model, the loss, or both."""

import pytest

from rows import each_row
from shardwise import System, estimate
from shardwise.config.launch import Launch
from shardwise.launchers.launch import LaunchPlan, LaunchText
from shardwise.launchers.torchtitan import LAUNCHER
from torchtitan_plans import imported

PLAIN = """
[model]
name = "deepseek_v3"
flavor = "16B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
expert_parallel_degree = 8
[activation_checkpoint]
selective_ac_option = "op"
[compile]
"""


def read(text: str) -> Launch:
    return LAUNCHER.read(LaunchText(source="run.toml", text=text, gpus=8))


@each_row(
    ("lines", "stack", "loss"),
    [
        ("", "torchtitan-eager", "stack"),
        ("enable = true", "torchtitan-2025", "stack"),
        ('enable = true\ncomponents = ["model"]', "torchtitan-2025", "eager"),
        ('enable = true\ncomponents = ["loss"]', "torchtitan-eager", "compiled"),
        ('enable = false\ncomponents = ["loss"]', "torchtitan-eager", "stack"),
    ],
)
def test_model_and_loss_are_compiled_apart(lines: str, stack: str, loss: str) -> None:
    """The layers set the stack, the loss its field; a plan is written with the same components."""
    model, strategy = imported(read(PLAIN + lines))
    assert strategy.loaded_stack().name == stack
    assert strategy.loss == loss
    resolved = strategy.resolved(model)
    plan = LaunchPlan(model=model, system=System.load("h100-sxm"), strategy=resolved)
    again = read(LAUNCHER.write(plan, "0.2.2", ".toml")[0].text)
    assert imported(again)[1].loaded_stack() == strategy.loaded_stack()
    assert imported(again)[1].loss == loss


def test_memory_of_a_published_run_of_experts() -> None:
    """DeepSeek-V3 16B on 8 H100, 8-fold expert parallelism, loss compiled: 73.3 GiB reserved and
    11,254 to 11,758 tokens/s of each GPU (pytorch/torchtitan, issue 1789)."""
    model, strategy = imported(read(PLAIN + 'enable = true\ncomponents = ["loss"]'))
    result = estimate(model, "h100-sxm", strategy)
    assert result.memory_bytes.reserved / 2**30 == pytest.approx(73.3, rel=0.06)
    assert result.tokens_per_s_per_gpu == pytest.approx(11_500, rel=0.06)
