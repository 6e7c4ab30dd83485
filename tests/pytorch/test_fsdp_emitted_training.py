"""The emitted code trains as one GPU would, can be verified, and is what transformers makes."""
# ruff: noqa: E402, SLF001 - torch may be missing; what transformers expands has no public way

import json
import os
import socket
import subprocess
import sys

import pytest

from shardwise.fsdp.emit import huggingface_form
from shardwise.fsdp.plan import Setting

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")

import sharded_training
from emitted_calls import unit, wrapping
from rows import each_row
from sharded_training import ALL_FP32, BLOCKS, CASES, HUB, OF_HUB, TOKENS, Chain, Pictures, hub
from shardwise.fsdp.verify import verify


@pytest.fixture(scope="module")
def losses():
    """Losses of all cases: alone, and of two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = [name for name in CASES if HUB or name not in OF_HUB]
    script = sharded_training.__file__
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), port, *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert not any(rank.returncode for rank in ranks), said[0][1] + said[1][1]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize("name", CASES)
def test_the_emitted_code_trains_as_one_gpu_would(name, losses):
    if name not in losses[0]:
        pytest.skip("needs transformers")
    for told in losses:
        alone, sharded = told[name]
        assert sharded == pytest.approx(alone, abs=1e-5)
        assert alone[-1] < alone[0]


@each_row("name", CASES)
def test_each_case_can_be_verified(name):
    """And its code is the text that was run: the same units, on the same names."""
    if name in OF_HUB and not HUB:
        pytest.skip("needs transformers")
    make, wrapped, setting = CASES[name]

    class Case(Chain):
        def build(self):
            return make()

        def inputs(self, module, batch, seq_len):
            ids = torch.zeros(batch, seq_len, dtype=torch.long)
            if isinstance(module, Pictures):
                return {"pictures": torch.zeros(batch, 3, 8, 8), "input_ids": ids}
            return (ids,), {}

        def loss(self, output):
            return (output if torch.is_tensor(output) else output.logits).float().mean()

    mixed = Setting(shards=setting.shards, replicas=setting.replicas)
    told = verify(Case(), wrapped, mixed, batch=2, seq_len=TOKENS)
    gathered = {m.place.partition(" ")[2] for m in told.moments if m.place.startswith("gather ")}
    if setting.shards > 1:
        assert {", ".join(u.modules) for u in wrapped.units} <= gathered


@pytest.mark.skipif(not HUB, reason="needs transformers")
def test_transformers_makes_of_the_plan_what_was_planned():
    units = [unit("model.embed_tokens"), *map(unit, BLOCKS), *(unit(f"{b}.mlp") for b in BLOCKS)]
    form = huggingface_form(wrapping(*units, unit("lm_head", reshard=False)), ALL_FP32)
    model = hub("Llama")
    space = {}
    exec(form.text.partition("distributed_config")[0], space)  # noqa: S102 - it is what we test
    model.fsdp_plan = space["fsdp_plan"]
    expanded = model._expand_parallel_plan(model.fsdp_plan)
    assert set(expanded) == {name for u in units for name in u.modules} | {"lm_head"}
    assert {n for n, style in expanded.items() if style == "keep_full_weight"} == {"lm_head"}
