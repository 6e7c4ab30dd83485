"""Words of published rows: which are understood, and which are ignored."""

from hypothesis import given
from hypothesis import strategies as st

from published_rows.packed import load_rows
from published_rows.row import Run
from published_rows.translate import measured_run
from published_rows.words import FEATURES, named_features, says_flash
from rows import each_row
from shardwise.validate.measured.predict import predict_runs

ROW = {
    "id": "a",
    "model": {"name": "llama3-8b", "layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32,
              "kv_heads": 8, "vocab": 128256, "seq_len": 8192},
    "hardware": {"accelerator": "H100", "count": 8},
    "software": {"framework": "Megatron-LM", "version": "core_v0.12.0"},
    "precision": "bf16",
    "parallelism": {"dp": 4, "tp": 2, "pp": 1, "cp": 1},
    "micro_batch": 1,
    "global_batch": 8,
    "recompute": {"granularity": "none"},
    "measured": {"step_time_s": 1.0},
}  # fmt: skip


def ignored(**fields):
    (run,) = predict_runs([measured_run(Run.validated({**ROW, **fields}))])
    assert run.refused is None
    return run.run.ignored


def test_what_is_understood_is_not_ignored():
    """A row of plain words."""
    assert ignored() == ()
    features = {"tp-comm-overlap": True, "recipe": "x", "nccl_ub": False, "cuda_graphs": "yes"}
    assert ignored(features=features) == ("features.nccl_ub: no effect",)


@each_row(
    ("fields", "said"),
    [
        ({"features": {"moon": 1}}, "features.moon '1': not known"),
        ({"features": {"liger": "perhaps"}}, "features.liger 'perhaps': not understood"),
        ({"features": {"nccl_ub": True}},
         "features.nccl_ub 'True': not modeled (user buffers of NCCL)"),
        ({"recompute": {"granularity": "some"}}, "recompute 'some': not understood"),
        ({"recompute": {"recompute_modules": ["mlp", "tail"]}}, "recompute of tail: not known"),
        ({"recompute": {"cpu_offloading_num_layers": 4}},
         "activations of some layers on the host: not modeled"),
        ({"software": {"framework": "Trainer X"}},
         "software.framework 'Trainer X': not known; the stack is unknown"),
        ({"precision": "int3"}, "precision 'int3': not understood"),
        ({"attention_impl": "magic"}, "attention_impl 'magic': not understood"),
        ({"colour": "red"}, "colour 'red': not known"),
        ({"parallelism": {"dp": 4, "tp": 2, "sdp": 2}},  "parallelism.sdp '2': not known"),
    ],
)  # fmt: skip
def test_what_is_ignored_is_said(fields, said):
    """Each word that the prediction does not use, once."""
    assert ignored(**fields) == (said,)


def test_every_word_of_the_bundled_rows_is_known():
    """No feature of the bundled runs is unknown: each is used, redundant or said not modeled."""
    words = {name for run in load_rows() for name in run.features}
    assert words <= FEATURES.keys()


@given(st.dictionaries(st.sampled_from(["x", *FEATURES]), st.none() | st.booleans()))
def test_names_of_features_are_stable(features):
    """One name for each; naming again changes nothing."""
    once = named_features(features)
    assert named_features(once) == once
    assert once.keys() <= {*FEATURES, "x"}


def test_two_names_of_one_feature():
    """The first that says something counts."""
    both = {"TP_COMM_OVERLAP": None, "tp-comm-overlap": True}
    assert named_features(both) == {"tp_comm_overlap": True}
    names = [alias for one in FEATURES.values() for alias in one.aliases]
    assert len(names) == len({*names})
    assert not {*names} & FEATURES.keys()


@each_row(
    ("text", "flash"),
    [
        ("unfused (pre-flash)", False),
        ("fused scaled masked softmax (no flash attention)", False),
        ("flash attention 2", True),
        ("TransformerEngine fused attention (cuDNN/flash)", True),
        ("not stated", None),
        (None, None),
    ],
)
def test_texts_of_attention(text, flash):
    """Whether its kernels are fused."""
    assert says_flash(text) is flash
