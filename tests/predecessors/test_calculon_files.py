"""Calculon's files: what is read, what is refused, and how it is said."""

import copy
import json

import pytest

from calculon_runs import RUNS
from rows import each_row
from shardwise import InputError, Model, Strategy, System, catalog
from shardwise.config.stack import Stack
from shardwise.predecessors.calculon.files import (
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
    check_together,
    looks_like,
)

MODEL = RUNS["models"]["gpt3-175B"]
SYSTEM = RUNS["systems"]["a100_80g"]
EXECUTION = RUNS["cases"][0]["execution"]
CURVE = "mem1.MB_efficiency"
NET = "networks[1]"


def _changed(data, path, value):
    """A copy with one value changed, or removed if the value is `...`."""
    data = copy.deepcopy(data)
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    target = data
    for key in parents:
        target = target[int(key)] if key.isdigit() else target[key]
    last = int(last) if last.isdigit() else last
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return data


def _faults(kind, data):
    with pytest.raises(InputError) as caught:
        kind.parse(data, "f.json")
    return str(caught.value).splitlines()


@each_row("name", list(RUNS["models"]))
def test_models_are_written_as_read(name):
    """Reading and writing a model changes nothing."""
    assert CalculonModel.parse(RUNS["models"][name]).to_dict() == RUNS["models"][name]


@each_row("name", list(RUNS["systems"]))
def test_systems_are_written_as_read(name):
    """Reading and writing a system changes nothing, and whole numbers stay whole."""
    written = CalculonSystem.parse(RUNS["systems"][name]).to_dict()
    assert written == RUNS["systems"][name]
    assert '"size": 8, ' in json.dumps(written)
    assert '"tflops": 78,' in json.dumps(written) or '"tflops": 120,' in json.dumps(written)


def test_executions_are_written_as_read():
    """Reading and writing an execution changes nothing."""
    for case in RUNS["cases"]:
        assert CalculonExecution.parse(case["execution"]).to_dict() == case["execution"]


@each_row(
    ("value", "told"),
    [
        (0, "0: must be at least 1"),
        (-1, "-1: must be at least 1"),
        (2**40, "1099511627776: must be at most 2147483648"),
        (1.0, "1.0: must be a whole number"),
        ("12288", "'12288': must be a whole number"),
        (True, "true: must be a whole number"),
        (None, "null: must be a whole number"),
        ([1], "[1]: must be a whole number"),
        (float("nan"), "nan: must be a whole number"),
        (..., "is missing and has no default"),
    ],
)
def test_a_count_is_an_integer_of_at_least_1(value, told):
    """No flags, fractions or text."""
    assert _faults(CalculonModel, _changed(MODEL, "hidden", value)) == [f"f.json: hidden: {told}"]


def test_other_keys_of_a_model_are_ignored_as_calculon_does():
    """A comment in a model file does no harm."""
    assert CalculonModel.parse(MODEL | {"comment": "x"}).to_dict() == MODEL


BAD_SYSTEMS = [
    ("matrix.float16.tflops", 0, "0: must be greater than 0"),
    ("matrix.float16.tflops", float("inf"), "inf: must be a finite number"),
    ("matrix.float16.tflops", "312", "'312': must be a number"),
    ("matrix.float16.tflops", True, "true: must be a number"),
    ("matrix", {}, "must not be empty"),
    ("matrix", 3, "3: must be a mapping"),
    (CURVE, [], "[]: must not be empty"),
    (CURVE, 7, "7: must be a list"),
    (CURVE, [[9, 0.5]], "[[9, 0.5]]: the last row must have threshold 0, for what is smaller than"),
    (f"{CURVE}[0]", [1], "[1]: must be a pair [threshold, efficiency]"),
    (f"{CURVE}[0]", [1, 2, 3], "[1, 2, 3]: must be a pair [threshold, efficiency]"),
    (f"{CURVE}[0][1]", 1.5, "1.5: must be at most 1"),
    (f"{CURVE}[0][1]", 0, "0: must be greater than 0"),
    (f"{CURVE}[0][0]", float("nan"), "nan: must be a finite number"),
    (f"{CURVE}[3][0]", -1, "-1: must be at least 0"),
    ("mem1.GiB", 0, "0.0: must be greater than 0"),
    ("mem2.GiB", -1, "-1: must be at least 0"),
    ("mem2.GBps", 0, "0: must be greater than 0"),
    ("mem2", ..., "is missing and has no default"),
    ("mem3", {}, "unknown key; did you mean 'mem2'?"),
    ("processing_mode", "rooflin", "'rooflin': allowed: roofline, no_overlap; did you mean 'roof"),
    ("networks", [], "[]: must not be empty"),
    (f"{NET}.bandwith", 1, "unknown key; did you mean 'bandwidth'?"),
    (f"{NET}.efficiency", 1.01, "1.01: must be at most 1"),
    (f"{NET}.latency", -1, "-1: must be at least 0"),
    (f"{NET}.size", 8.0, "8.0: must be a whole number"),
    (f"{NET}.size", 0, "0: must be at least 1"),
    (f"{NET}.must_be_filled", 1, "1: must be true or false"),
    (f"{NET}.processor_usage", 1, "1: must be less than 1"),
    (f"{NET}.ops.p2p", [1, 0], "[1, 0]: the offset of p2p must be null"),
    (f"{NET}.ops.all_gather", ..., "is missing and has no default"),
    (f"{NET}.ops.all_gather", [1], "[1]: must be a pair [scalar, offset]"),
    (f"{NET}.ops.all_gather[1]", None, "null: must be a number"),
    (f"{NET}.ops.all_gather[1]", -2, "-2: must be at least -1"),
    (f"{NET}.ops.alltoall", [1, 0], "unknown key; allowed: all_gather, all_reduce, p2p, reduce"),
]


@each_row(("field", "value", "told"), BAD_SYSTEMS)
def test_a_bad_system_is_one_clear_line(field, value, told):
    """File, field, value, and what is allowed."""
    (fault,) = _faults(CalculonSystem, _changed(SYSTEM, field, value))
    assert fault.startswith(f"f.json: {field}: {told}")


@each_row(
    "field",
    [
        "matrix.float16.gflops_efficiency",
        "vector.float16.gflops_efficiency",
        CURVE,
        "mem2.MB_efficiency",
    ],
)
def test_a_curve_descends(field):
    """Calculon reads an ascending curve of memory wrongly without a word; it is refused here."""
    (fault,) = _faults(CalculonSystem, _changed(SYSTEM, field, [[1, 0.5], [10, 0.9], [0, 0.1]]))
    told = "thresholds must descend strictly, but row 2 has 10 after 1"
    assert fault == f"f.json: {field}: [[1, 0.5], [10, 0.9], [0, 0.1]]: {told}"


def test_a_system_may_have_no_second_tier():
    """mem2.GiB 0 means that there is nothing to offload to."""
    assert CalculonSystem.parse(_changed(SYSTEM, "mem2.GiB", 0)).mem2.GiB == 0


BAD_EXECUTIONS = [
    ({"num_procs": 3071}, "num_procs: 3071: must be tensor_par x pipeline_par x data_par = 4 x 64"),
    ({"batch_size": 3070}, "batch_size: 3070: must be a multiple of data_par 12"),
    ({"microbatch_size": 3}, "microbatch_size: 3: must divide batch_size / data_par = 256"),
    (
        {"datatype": "flaot16"},
        "datatype: 'flaot16': allowed: float8, float16, bfloat16, float32; d",
    ),
    ({"attention_type": "gqa"}, "attention_type: 'gqa': allowed: multihead, multiquery"),
    ({"training": "true"}, "training: 'true': must be true or false"),
    ({"tensor_par": True}, "tensor_par: true: must be a whole number"),
    ({"data_par_net": 1.0}, "data_par_net: 1.0: must be a whole number"),
    ({"data_par_net": -1}, "data_par_net: -1: must be at least 0"),
    ({"pipeline_interleaving": 0}, "pipeline_interleaving: 0: must be at least 1"),
    (
        {"pipeline_par": 1, "num_procs": 48, "pipeline_interleaving": 2},
        "pipeline_interleaving: 2: must be 1 where pipeline_par is 1",
    ),
    (
        {"data_par": 1, "num_procs": 256},
        "optimizer_sharding: true: needs data_par greater than 1",
    ),
    (
        {"tensor_par": 1, "num_procs": 768, "tensor_par_overlap": "ring"},
        "tensor_par_overlap: 'ring': needs tensor_par greater than 1",
    ),
    (
        {"seq_par_ag_redo": True},
        "seq_par_ag_redo: true: needs activation_recompute 'attn_only' or 'none'",
    ),
    (
        {"seq_par_ag_redo": True, "activation_recompute": "none", "tensor_par_comm_type": "ar"},
        "seq_par_ag_redo: true: needs tensor_par_comm_type 'rs_ag'",
    ),
    (
        {"data_par_overlap": True, "training": False},
        "data_par_overlap: true: needs training, and data_par greater than 1",
    ),
    ({"tensor_parr": 4}, "tensor_parr: unknown key; did you mean 'tensor_par'?"),
]


@each_row(("changes", "told"), BAD_EXECUTIONS)
def test_a_bad_execution_is_one_clear_line(changes, told):
    """Where Calculon stops with a bare assertion, file, field, value and reason are named."""
    (fault,) = _faults(CalculonExecution, EXECUTION | changes)
    assert fault.startswith(f"f.json: {told}")


@each_row("key", list(EXECUTION))
def test_every_key_of_an_execution_is_needed(key):
    """No key has a default."""
    faults = _faults(CalculonExecution, _changed(EXECUTION, key, ...))
    assert faults == [f"f.json: {key}: is missing and has no default"]


def test_all_faults_of_an_execution_are_told_at_once():
    """One line each."""
    faults = _faults(CalculonExecution, EXECUTION | {"num_procs": 1, "batch_size": 1})
    assert [fault.split(": ")[1] for fault in faults] == ["num_procs", "batch_size"]


UNFIT = [
    ("model", {"hidden": 12290}, "tensor_par: 4: must divide the model's hidden 12290"),
    ("model", {"feedforward": 9}, "tensor_par: 4: must divide the model's feedforward 9"),
    ("model", {"attn_heads": 6}, "tensor_par: 4: must divide the model's attn_heads 6"),
    (
        "model",
        {"seq_size": 2**31, "feedforward": 2**31},
        "microbatch_size: 4: a block of this model has tensors of more than 2^53 elements",
    ),
    (
        "execution",
        {"datatype": "bfloat16"},
        "datatype: 'bfloat16': is not in the system's matrix table; did you mean 'float16'?",
    ),
    (
        "execution",
        {"tensor_par_net": 2},
        "tensor_par_net: 2: the system has networks 0 to 1",
    ),
    ("execution", {"data_par_net": 5}, "data_par_net: 5: the system has networks 0 to 1"),
]


@each_row(("which", "changes", "told"), UNFIT)
def test_files_that_do_not_go_together_are_refused(which, changes, told):
    """An execution is checked against the model and the system it is for."""
    data = {"model": MODEL, "system": SYSTEM, "execution": EXECUTION}
    data[which] = data[which] | changes
    with pytest.raises(InputError) as caught:
        check_together(
            CalculonModel.parse(data["model"]),
            CalculonSystem.parse(data["system"]),
            CalculonExecution.parse(data["execution"]),
            source="e.json",
        )
    assert str(caught.value).splitlines()[0] == f"e.json: {told}"


def test_scattered_tokens_are_whole():
    """Reduce-scatter needs as many tokens on every processor; an all-reduce does not."""
    model, system = CalculonModel.parse(MODEL | {"seq_size": 1}), CalculonSystem.parse(SYSTEM)
    execution = EXECUTION | {"microbatch_size": 2}
    with pytest.raises(InputError, match="4: must divide microbatch_size x seq_size = 2 for"):
        check_together(model, system, CalculonExecution.parse(execution))
    check_together(
        model, system, CalculonExecution.parse(execution | {"tensor_par_comm_type": "ar"})
    )


def test_files_that_go_together_are_accepted():
    """Every run of Calculon's is."""
    for case in RUNS["cases"]:
        check_together(
            CalculonModel.parse(RUNS["models"][case["model"]]),
            CalculonSystem.parse(RUNS["systems"][case["system"]]),
            CalculonExecution.parse(case["execution"]),
        )


@each_row(
    ("data", "kind"),
    [
        (MODEL, "model"),
        (SYSTEM, "system"),
        (EXECUTION, "execution"),
        (_changed(MODEL, "hidden", ...), "model"),
        (_changed(_changed(SYSTEM, "mem2", ...), "processing_mode", ...), "system"),
        (_changed(_changed(EXECUTION, "num_procs", ...), "training", ...), "execution"),
        ({key: MODEL[key] for key in ("hidden", "feedforward", "attn_heads")}, "model"),
        ({key: SYSTEM[key] for key in ("matrix", "mem1", "processing_mode")}, "system"),
        ({key: SYSTEM[key] for key in ("matrix", "vector", "networks")}, "system"),
        ({"tensor_par": 8, "pipeline_par_net": 0, "seq_par_ag_redo": True}, "execution"),
        ({"name": "x", "hidden": 1, "layers": []}, None),
        ({"networks": [], "tensor_par": 1}, None),
        ({}, None),
    ],
)
def test_a_file_is_known_by_its_keys(data, kind):
    """Half of the keys may be missing: the file is still told what it lacks."""
    assert looks_like(data) == kind


# Keys of configurations on the Hugging Face hub: Llama, GPT-2, T5, Falcon, MPT, DBRX, xLSTM.
HUGGING_FACE = [
    "architectures hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim",
    "n_ctx n_embd n_head n_inner n_layer n_positions attn_pdrop vocab_size model_type",
    "d_model d_ff d_kv num_heads num_layers num_decoder_layers feed_forward_proj model_type",
    "hidden_size num_attention_heads num_kv_heads multi_query parallel_attn alibi bias",
    "attn_config ffn_config d_model n_heads n_layers max_seq_len expansion_ratio",
    "embedding_dim num_heads num_blocks vocab_size ffn_proj_factor model_type",
]


@each_row("keys", HUGGING_FACE)
def test_a_configuration_of_hugging_face_is_none_of_calculons(keys):
    """It has other words."""
    assert looks_like(dict.fromkeys(keys.split())) is None


@each_row("noun", [Model, System, Strategy, Stack])
def test_a_file_of_ours_is_none_of_calculons(noun):
    """Neither one of the catalog nor one with every key there is."""
    assert looks_like(dict.fromkeys(noun.model_fields)) is None
    for name in catalog.names(noun.CATALOG) if noun.CATALOG else []:
        assert looks_like(noun.load(name).to_dict()) is None


def test_a_threshold_beyond_all_reason_is_refused():
    """1e302 GFLOP is no size of an operation, and no finite number of FLOP."""
    data = json.loads(json.dumps(RUNS["systems"]["a100_80g"]))
    data["matrix"]["float16"]["gflops_efficiency"].insert(0, [1e302, 0.99])
    with pytest.raises(InputError) as caught:
        CalculonSystem.parse(data, "s.json")
    (fault,) = caught.value.faults
    assert "matrix.float16.gflops_efficiency[0]" in str(fault)
    assert "1e+30" in str(fault)
