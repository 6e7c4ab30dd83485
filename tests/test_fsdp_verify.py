"""FSDP2 on fake tensors holds what its rules say, and the emitted code trains as one GPU would.

Run as a script this file is one of two ranks that train sharded models on CPUs.
"""
# ruff: noqa: E402, SLF001 - torch may be missing; what is compared has no public way in

import json
import os
import socket
import subprocess
import sys
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from shardwise.errors import InputError
from shardwise.fsdp.emit import huggingface_form, python_code
from shardwise.fsdp.plan import Setting, Unit, Wrapping

torch = pytest.importorskip("torch")
tools = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")

from torch import nn

from shardwise.fsdp import verify as ours
from shardwise.fsdp.verify import verify

HUB = find_spec("transformers") is not None
BATCH, TOKENS, STEPS = 4, 8, 2
ALL_FP32 = Setting(shards=2, compute_dtype="fp32")


def unit(*modules, reshard=True):
    return Unit(modules=modules, reshard_after_forward=reshard)


def wrapping(*units, checkpointed=()):
    return Wrapping(units=units, checkpointed=tuple(checkpointed))


class Chain:
    """Square matrices in a row: every unit holds N = width² numbers and saves width numbers."""

    def __init__(self, count=4, width=64, wrong=""):
        self.count, self.width, self.wrong = count, width, wrong

    def build(self):
        if self.wrong == "build":
            raise KeyError("cannot be built")
        return nn.Sequential(
            *(nn.Linear(self.width, self.width, bias=False) for _ in range(self.count))
        )

    def inputs(self, _module, batch, _seq_len):
        return (torch.zeros(batch, self.width),)

    def loss(self, output):
        if self.wrong == "loss":
            raise KeyError("no loss")
        return output.float().sum()


N = 64 * 64
EACH = wrapping(*(unit(str(i)) for i in range(4)))


def found(verified, place):
    """The fullest moment after a turn, the first time it is taken."""
    return next(m for m in verified.moments if m.place == place)


def weights(moment):
    """What FSDP2 holds of weights and gradients, in multiples of N bytes."""
    told = {k: v / N for k, v in moment.by_category.items()}
    return {k: told.get(k, 0) for k in ("Unsharded Param", "All Gather", "Reduce Scatter")}


def test_the_state_is_sharded_and_adamw_needs_one_more_copy():
    """fp32, W = 4, 4 matrices: 4N bytes each of weights, gradients, 2 states; and one root."""
    told = verify(Chain(), wrapping(), Setting(shards=4), batch=1, seq_len=1)
    step = told.optimizer
    assert step.phase == "optimizer"
    assert step.by_category["Sharded Param"] == 4 * N
    assert step.by_category["Sharded Grad"] == 4 * N
    # Two states and the root of one, and 4 bytes that count steps for each of 4 matrices.
    assert step.by_category["OptState"] == 3 * 4 * N + 4 * 4
    assert told.peak_bytes == max(m.total_bytes for m in told.moments)
    assert all(sum(m.by_category.values()) == m.total_bytes for m in told.moments)


def test_forward_holds_two_gather_buffers_while_it_copies_out():
    """bf16, 2N bytes a unit: on the copy for unit 1 the buffer of unit 0 still lives."""
    told = verify(Chain(), EACH, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    copying = found(told, "gather 1")
    assert weights(copying) == {"Unsharded Param": 2, "All Gather": 4, "Reduce Scatter": 0}
    after = found(told, "enter 2")  # the last gathered stays, its weights do not
    assert weights(after)["Unsharded Param"] == 0


def test_backward_holds_the_next_unit_and_the_last_reduction():
    """While unit 1 runs backward: it and the buffer of unit 0; fp32 input of the reduction of 2."""
    told = verify(Chain(), EACH, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    assert weights(found(told, "reduce 1")) == {
        "Unsharded Param": 2,
        "All Gather": 2,
        "Reduce Scatter": 4,
    }


def test_weights_that_are_kept_are_gathered_once():
    kept = wrapping(*(unit(str(i), reshard=False) for i in range(4)))
    told = verify(Chain(), kept, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    assert sum(m.place.startswith("gather ") for m in told.moments) == 4
    assert weights(found(told, "loss.backward()"))["Unsharded Param"] == 8


def test_a_group_is_gathered_once_and_kept_until_its_last_module_ends():
    """The tracker of PyTorch ends a group at each of its modules; here the hooks are FSDP2's."""
    pairs = wrapping(unit("0", "1"), unit("2", "3"))
    told = verify(Chain(), pairs, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    forward = [m.place for m in told.moments if m.phase == "forward"]
    acts = [p for p in forward if p.startswith(("gather ", "gathered ", "reshard ", "exit "))]
    assert acts == [
        *("gather 0, 1", "gathered 0, 1", "exit 0", "exit 1", "reshard 0, 1"),
        *("gather 2, 3", "gathered 2, 3", "exit 2", "exit 3", "reshard 2, 3"),
        "exit root",
    ]
    assert weights(found(told, "exit 0"))["Unsharded Param"] == 4


@pytest.mark.parametrize("units", [wrapping(), EACH], ids=["root", "each"])
@pytest.mark.parametrize("checkpointed", [(), ("0", "2")], ids=["kept", "checkpointed"])
def test_without_groups_the_peak_is_that_of_pytorchs_own_tracker(units, checkpointed):
    setting = Setting(shards=4)
    load, wrapped = Chain(), wrapping(*units.units, checkpointed=checkpointed)
    with ours._fake_world(torch, setting) as mesh:
        module = load.build()
        ours._wrap(module, wrapped, setting, mesh)
        optimizer = ours._optimizer(torch, module, setting)
        called = (load.inputs(module, 8, 1), {})
        ours._step(load, module, optimizer, called)
        module.zero_grad()
        tracker = tools.FSDPMemTracker(module, optimizer)
        tracker.track_inputs((called,))
        with tracker:
            ours._step(load, module, optimizer, called)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    told = verify(load, wrapped, setting, batch=8, seq_len=1)
    assert told.peak_bytes == peak["Total"]


def test_checkpointed_modules_keep_their_input_alone():
    """Each block saves its input and what comes out of tanh; checkpointed, the input."""
    load = Chain()
    load.build = lambda: nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(8))
    )
    setting = Setting(shards=4, compute_dtype="fp32", optimizer="none")

    def held(*names):
        told = verify(load, wrapping(checkpointed=names), setting, batch=256, seq_len=1)
        return found(told, "loss.backward()").by_category["Activation"]

    assert held() - held("0", "3", "4") == 3 * 256 * 64 * 4


def test_replicas_keep_what_they_reduced_until_backward_ends():
    """Reduced in fp32 but stored in bf16, each unit's share stays: 4 units of 4N/4 bytes."""
    setting = Setting(shards=4, replicas=2, stored_dtype="bf16")
    single = verify(Chain(), EACH, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    double = verify(Chain(), EACH, setting, batch=1, seq_len=1)
    more = found(double, "reduced 0").total_bytes - found(single, "reduced 0").total_bytes
    assert more == 4 * N
    assert double.optimizer.total_bytes == single.optimizer.total_bytes


@pytest.mark.parametrize(("optimizer", "states"), [("none", 0), ("sgd", 0), ("adamw", 2)])
def test_optimizers_keep_their_states(optimizer, states):
    setting = Setting(shards=4, optimizer=optimizer)
    told = verify(Chain(), wrapping(), setting, batch=1, seq_len=1)
    start = told.moments[0].by_category.get("OptState", 0)
    assert start == states * 4 * N + (4 * 4 if states else 0)


@pytest.mark.parametrize("wrong", ["", "build", "loss"])
def test_everything_is_as_before(wrong):
    """No process group, no default dtype, no patched method stays, whatever goes wrong."""
    resize, show = torch.UntypedStorage.resize_, warnings.formatwarning
    seed = torch.get_rng_state()
    setting = Setting(shards=2, stored_dtype="bf16")
    if wrong:
        with pytest.raises(KeyError):
            verify(Chain(wrong=wrong), wrapping(), setting, batch=1, seq_len=1)
    else:
        verify(Chain(), wrapping(), setting, batch=1, seq_len=1)
    assert not torch.distributed.is_initialized()
    assert torch.get_default_dtype() == torch.float32
    assert torch.UntypedStorage.resize_ is resize
    assert warnings.formatwarning is show
    assert torch.equal(torch.get_rng_state(), seed)
    assert type(torch.ones(1) + 1) is torch.Tensor


def test_a_process_group_of_others_is_left_alone(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        with pytest.raises(InputError, match="exists already"):
            verify(Chain(), wrapping(), Setting(shards=2), batch=1, seq_len=1)
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


def test_kernels_that_stand_in_for_an_accelerators_are_used():
    """For both steps, forward and backward; and then the note that they are missing is too."""
    told = []

    class Standing(Chain):
        @contextmanager
        def stand_ins(self):
            told.append("begin")
            yield
            told.append("end")

    with_them = verify(Standing(), wrapping(), ALL_FP32, batch=1, seq_len=1)
    without = verify(Chain(), wrapping(), ALL_FP32, batch=1, seq_len=1)
    assert told == ["begin", "end"]
    assert not any("kernels of the CPU" in note for note in with_them.notes)
    assert any("kernels of the CPU" in note for note in without.notes)


def test_warnings_of_fsdp2_are_notes():
    """A linear layer with a bias gives a view of its product when its input has three axes."""

    class Deep(Chain):
        def build(self):
            return nn.Sequential(nn.Linear(64, 64))

        def inputs(self, _module, batch, seq_len):
            return torch.zeros(batch, seq_len, 64)

    told = verify(Deep(), wrapping(unit("0")), ALL_FP32, batch=2, seq_len=2)
    assert any("FSDP2-wrapped module (FSDPLinear) returned a view" in note for note in told.notes)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match=r"units: '7': no module of the model"):
        verify(Chain(), wrapping(unit("7")), Setting(shards=2), batch=1, seq_len=1)
    with pytest.raises(InputError, match="checkpointed: '7'"):
        verify(Chain(), wrapping(checkpointed=["7"]), Setting(shards=2), batch=1, seq_len=1)


def test_weights_in_two_units_are_refused_in_fsdp2s_words():
    load = Chain()
    plain = load.build

    def tied():
        module = plain()
        module[3].weight = module[0].weight
        return module

    load.build = tied
    with pytest.raises(InputError, match=r"refused by FSDP2: .*shared"):
        verify(load, EACH, Setting(shards=2), batch=1, seq_len=1)
    group = wrapping(unit("0", "3"), unit("1"), unit("2"))
    told = verify(load, group, Setting(shards=4), batch=1, seq_len=1)
    assert told.moments[0].by_category["Sharded Param"] == 3 * N  # counted once


# --- the emitted code, run by two ranks ---------------------------------------------------------


class Pictures(nn.Module):
    """Pictures and tokens: a tower, a projection, and layers that see both."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.Flatten(2))
        self.seeing = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.projector = nn.Linear(16, 24)
        self.embed = nn.Embedding(50, 24)
        self.layers = nn.ModuleDict(
            {
                str(i): nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU())
                for i in range(3)
            }
        )
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 50)
        self.tower.requires_grad_(False)

    def forward(self, pictures, input_ids):
        seen = self.tower(pictures).transpose(1, 2)
        for layer in self.seeing:
            seen = seen + torch.tanh(layer(seen))
        both = torch.cat([self.projector(seen), self.embed(input_ids)], dim=1)
        for layer in self.layers.values():
            both = both + layer(both)
        return self.head(self.norm(both))[:, -TOKENS:]


def toy():
    blocks = [nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24)) for _ in range(5)]
    return nn.Sequential(nn.Embedding(50, 24), *blocks, nn.LayerNorm(24), nn.Linear(24, 50))


def hub(name, **more):
    import transformers  # noqa: PLC0415 - not needed by all

    sizes = {"num_hidden_layers": 4, "hidden_size": 32, "vocab_size": 50, "use_cache": False}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    config = getattr(transformers, f"{name}Config")(**sizes | more)
    kind = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    return getattr(transformers, kind)(config)


def gpt2():
    return hub("GPT2", n_head=4, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)


def qwen():
    return hub(
        "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8
    )


BLOCKS = [f"model.layers.{i}" for i in range(4)]
HEADS = [f"transformer.h.{i}" for i in range(4)]
CASES = {
    "toy": (
        toy,
        wrapping(
            *(unit(str(i)) for i in (0, 1, 2)),
            *(unit("2.2"), unit("3", "4"), unit("5", reshard=False), unit("6", "7")),
            checkpointed=["1", "2", "3", "5", "5.0"],
        ),
        Setting(shards=2, compute_dtype="fp32"),
    ),
    "replicas": (
        toy,
        wrapping(*(unit(str(i)) for i in range(1, 6))),
        Setting(shards=1, replicas=2, compute_dtype="fp32"),
    ),
    "pictures": (
        Pictures,
        wrapping(
            *(unit("tower"), *(unit(f"seeing.{i}") for i in range(4)), unit("projector")),
            *(unit("embed"), *(unit(f"layers.{i}") for i in range(3))),
            unit("norm", "head", reshard=False),
            checkpointed=["layers.1"],
        ),
        ALL_FP32,
    ),
    "gpt2": (
        gpt2,
        wrapping(
            unit("transformer.wte", "transformer.ln_f", "lm_head"),
            unit("transformer.wpe"),
            *map(unit, HEADS),
            checkpointed=HEADS,
        ),
        ALL_FP32,
    ),
    "llama": (
        lambda: hub("Llama"),
        wrapping(
            unit("model.embed_tokens"),
            *(u for name in BLOCKS for u in (unit(name), unit(f"{name}.mlp"))),
            unit("model.norm", "lm_head", reshard=False),
            checkpointed=BLOCKS[:2],
        ),
        ALL_FP32,
    ),
    "qwen": (
        qwen,
        wrapping(
            unit("model.embed_tokens"),
            *(u for n in BLOCKS for u in (unit(f"{n}.self_attn"), unit(f"{n}.mlp"))),
            unit("lm_head"),
            checkpointed=[f"{name}.mlp" for name in BLOCKS],
        ),
        ALL_FP32,
    ),
}
OF_HUB = {"gpt2", "llama", "qwen"}


def emitted(name):
    """The code for a case, for CPUs."""
    make, wrapped, setting = CASES[name]
    modules = [n for n, _ in make().named_modules() if n]
    told = {"modules": modules, "keyed": ["layers"], "device": "cpu"}  # the dictionary of Pictures
    return python_code(wrapped, setting, model_name=name, **told)


def loss_of(model, ids, pictures):
    """Of the next token; the same number on every position."""
    given = (pictures, ids) if isinstance(model, Pictures) else (ids,)
    output = model(*given)
    scores = output if torch.is_tensor(output) else output.logits
    return nn.functional.cross_entropy(scores.flatten(0, 1), ids.roll(-1, 1).flatten())


def trained(model, ids, pictures, rank=None):
    """Losses before each step and after the last, over all ranks."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    part = slice(None) if rank is None else slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    losses = []
    for step in range(STEPS + 1):
        loss = loss_of(model, ids[part], pictures[part])
        told = loss.detach().clone()
        if rank is not None:
            torch.distributed.all_reduce(told)
            told /= 2
        losses.append(told.item())
        if step < STEPS:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses


def main(rank, store, names):
    """Train each model alone and sharded over two ranks, and print the losses."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{store}", rank=rank, world_size=2
    )
    told = {}
    for name in names:
        torch.manual_seed(0)
        ids, pictures = torch.randint(50, (BATCH, TOKENS)), torch.randn(BATCH, 3, 8, 8)
        alone, sharded = CASES[name][0](), CASES[name][0]()
        sharded.load_state_dict(alone.state_dict())
        space = {}
        exec(compile(emitted(name), name, "exec"), space)  # noqa: S102 - it is what we test
        assert space["shard"](sharded) is sharded
        told[name] = [trained(alone, ids, pictures), trained(sharded, ids, pictures, rank)]
    torch.distributed.destroy_process_group()
    print(json.dumps(told))  # noqa: T201 - read by the test


@pytest.fixture(scope="module")
def losses():
    """Losses of all cases: alone, and of two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = [name for name in CASES if HUB or name not in OF_HUB]
    here = str(Path(__file__).resolve())
    ranks = [
        subprocess.Popen(
            [sys.executable, here, str(rank), port, *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
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


@pytest.mark.parametrize("name", CASES)
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


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
