"""Small training runs: models as `ops` counts them, and the same training in every layout."""
# ruff: noqa: E402 - torch may be missing

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from samples import operations, saved
from shardwise import Model
from shardwise.measure.job import Job
from shardwise.measure.modules import Transformer
from shardwise.measure.worker import saved_bytes
from shardwise.ops.operation import FlashAttention, Matmul, Phase
from shardwise.ops.param_count import count_parameters

pytestmark = pytest.mark.any_software

TOKENS, VOCABULARY, HIDDEN = 64, 80, 48
MLP = {"mlp": {"ffn": 72, "activation": "swiglu"}}
GROUPED = {"attention": {"heads": 6, "kv_heads": 2, "head_dim": 16}}
LATENT = {"q_rank": 20, "kv_rank": 12, "rope_dim": 8}
EXPERTS = {"experts": 4, "top_k": 2, "ffn": 24, "activation": "swiglu"}
LAYERS = {
    "dense": {"attention": {"heads": 6, "kv_heads": 6, "head_dim": 16}} | MLP,
    "grouped": GROUPED | MLP,
    "latent": {"attention": {"heads": 6, "kv_heads": 6, "head_dim": 16, "latent": LATENT}} | MLP,
    "experts": GROUPED | {"moe": EXPERTS | {"shared_ffn": 32}},
}
GPT = {
    "attention": {"heads": 6, "kv_heads": 6, "head_dim": 8, "bias": "all"},
    "mlp": {"ffn": 96, "activation": "gelu", "bias": True},
}


def described(layer, **fields):
    usual = {"name": "small", "hidden": HIDDEN, "vocab": VOCABULARY, "seq_len": TOKENS}
    usual |= {"norm": "rmsnorm", "position": "rope", "layers": [{"count": 2} | layer]}
    return Model.load(usual | fields)


def built(model):
    return Transformer(model, TOKENS, range(model.depth), first=True, last=True)


def loss_of(module):
    ids = torch.randint(VOCABULARY, (1, TOKENS))
    return cross_entropy(module(ids).flatten(0, 1), ids.flatten())


LEARNED = {"norm": "layernorm", "position": "learned", "tied_embeddings": True}
NAMED = [*((layer, {}) for layer in LAYERS.values()), (GPT, LEARNED), (GPT, {"head_bias": True})]


@pytest.mark.parametrize(("layer", "fields"), NAMED, ids=range(len(NAMED)))
def test_built_models_have_the_parameters_that_are_counted(layer, fields):
    model = described(layer, **fields)
    held = sum(one.numel() for one in built(model).parameters())
    assert held == count_parameters(model).total


def each_layer(model, **work):
    work |= {"sequences": 1, "seq_len": TOKENS, "document_len": TOKENS}
    return operations(model, **work).values()


@pytest.mark.parametrize("kind", LAYERS)
def test_products_are_those_that_pytorch_counts(kind):
    """Forward and backward, to the last one.

    The unfused kernel computes all scores, of which a causal one computes half, and no scores
    again in backward: 2 products forward and 4 backward.
    """
    model = described(LAYERS[kind])
    module = built(model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_of(module).backward()
    kernels = [kernel for one in each_layer(model) for kernel in one.kernels]
    products = sum(float(one.flops[0]) for one in kernels if isinstance(one, Matmul))
    core = [one for one in kernels if isinstance(one, FlashAttention)]
    scores = sum(float(one.flops[0]) for one in core if one.phase is Phase.FORWARD)
    head = 6 * TOKENS * HIDDEN * VOCABULARY
    assert counter.get_total_flops() == 2 * (products + 3 * 2 * scores) + head


def beyond_kernels(kind, model):
    """Bytes of a token that eager PyTorch saves in addition to what kernels need.

    A factor of each norm; of latent attention the input of a norm with the rotated keys that it is
    a slice of; of experts scores and places by token, and the inner activation before it is
    weighted, in a kernel of its own.
    """
    match kind:
        case "latent":
            return 4 * 4 + 4 * LATENT["rope_dim"]
        case "experts":
            moe = model.layers[0].moe
            return 2 * 4 + 4 * moe.top_k * moe.ffn + 4 + 32 * moe.top_k
    return 2 * 4


@pytest.mark.parametrize("kind", LAYERS)
def test_saved_bytes_are_those_that_pytorch_saves(kind):
    """In fp32 without fused norms and activations, by hooks of autograd, to the last byte."""
    one, two = (described(LAYERS[kind] | {"count": n}) for n in (1, 2))
    modules = [built(model) for model in (one, two)]
    first, both = (saved_bytes(module, lambda m=module: loss_of(m)) for module in modules)
    eager = {"fused_norm": False, "fused_swiglu": False, "element_bytes": 4}
    eager |= {"dispatch_bytes": 4, "activation_input_bytes": 4}
    counted = saved(each_layer(one, **eager))
    assert both - first == counted + TOKENS * beyond_kernels(kind, one)


JOB = Job(
    model=described(LAYERS["grouped"], vocab=64).to_dict(),
    device="cpu",
    threads=1,
    stages=((0, 2),),
    dp=1,
    tp=1,
    pp=1,
    zero=0,
    reshard=True,
    scattered=False,
    schedule="1f1b",
    recompute=False,
    attention="stack",
    dtype="fp32",
    optimizer="adamw",
    micro_batch_size=2,
    micro_batches=2,
    seq_len=TOKENS,
    steps=2,
    warm_up=1,
)
HALVES = ((0, 1), (1, 2))
JOBS = {
    "alone": JOB,
    "recompute": replace(JOB, recompute=True),
    "tensor": replace(JOB, tp=2),
    "sequence": replace(JOB, tp=2, scattered=True),
    "ddp": replace(JOB, dp=2),
    "fsdp": replace(JOB, dp=2, zero=3),
    "fsdp2": replace(JOB, dp=2, zero=2),
    "1f1b": replace(JOB, pp=2, stages=HALVES),
    "gpipe": replace(JOB, pp=2, stages=HALVES, schedule="gpipe"),
    "silent": replace(JOB, tp=2, silent=True),
}
SCRIPT = """
import json, pathlib, sys
from shardwise.measure.job import Job
from shardwise.measure.worker import train
rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
found = {}
for name, fields in json.loads(sys.argv[3]).items():
    job, own = Job(**fields), folder / name
    own.mkdir(exist_ok=True)
    if rank < job.ranks:
        found[name] = train(job, rank, own)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What both processes measured of all jobs, one after the other."""
    folder = tmp_path_factory.mktemp("jobs")
    jobs = json.dumps({name: asdict(job) for name, job in JOBS.items()})
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(folder), jobs],
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
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), said[0][1] + said[1][1]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize("name", ["recompute", "tensor", "sequence"])
def test_a_split_model_trains_as_one_process_does(name, trained):
    """Loss after loss."""
    for rank in trained[: JOBS[name].ranks]:
        assert rank[name]["losses"] == pytest.approx(trained[0]["alone"]["losses"], abs=2e-5)


def test_replicas_train_as_their_shards_do(trained):
    """DistributedDataParallel and FSDP2, with weights that stay or are resharded."""
    for rank in trained:
        for name in ("fsdp", "fsdp2"):
            assert rank[name]["losses"] == pytest.approx(rank["ddp"]["losses"], abs=2e-5)


def test_stages_train_in_any_order(trained):
    """GPipe accumulates the gradients that 1F1B does; the last stage has the losses."""
    last = trained[1]
    assert last["1f1b"]["losses"] == pytest.approx(last["gpipe"]["losses"], abs=2e-5)
    assert last["1f1b"]["losses"][0] > last["1f1b"]["losses"][-1] > 0


@pytest.mark.parametrize("name", JOBS)
def test_every_step_has_its_parts(name, trained):
    """They are within the step; peaks hold what resides, and attention ran in one kernel."""
    for rank in trained[: JOBS[name].ranks]:
        found = rank[name]
        assert len(found["steps"]) == JOB.steps
        for step in found["steps"]:
            parts = step["forward"] + step["backward"] + step["optimizer"]
            assert 0 < parts <= step["step"]
        if not JOBS[name].silent:
            assert found["attention"] == ["flash_attention_for_cpu"]
            weights = 4 * count_parameters(Model.load(JOB.model)).total / JOBS[name].ranks
            assert 3 * weights < found["peak_bytes"] < found["process_bytes"]


def test_recompute_saves_less(trained):
    """The inputs of layers alone."""
    saved_here, usual = (trained[0][name]["saved_bytes"] for name in ("recompute", "alone"))
    assert saved_here < usual / 3
