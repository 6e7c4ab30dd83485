"""What measured runs used, and what a feature adds to the error of a prediction."""

import json
from pathlib import Path

import numpy as np
import pytest

from catalog_fit.features import added_error, classes_of_runs, features_by_run
from catalog_fit.features import measured_features as derived_features
from shardwise import Strategy, catalog
from shardwise.analysis.features import measured_features
from shardwise.analysis.validated_runs import RunFeatures, ValidatedRuns, validated_runs
from shardwise.validate.measured.runs import load_runs


def test_what_runs_used_is_what_their_rows_say() -> None:
    """Every tenth run of grade A uses features of the list, and no other one is called used."""
    known = measured_features()
    few = features_by_run(load_runs()[::10], validated_runs())
    assert len(few) > 40
    assert {name for names in few.values() for name in names} <= set(known.used)
    assert max(known.used.values()) == known.used["training=true"] == known.runs
    names = {name.partition("=")[0] for name in known.used}
    assert names <= set(Strategy.model_fields) - {"stack", "placement", "seq_len", "gpus"}


@pytest.mark.nightly
def test_the_file_of_features_is_what_the_script_writes() -> None:
    """All runs: what they used, and what a feature adds."""
    assert derived_features(load_runs()) == measured_features()
    path = Path(catalog.__file__).parent / "fit" / "classes.json"
    assert classes_of_runs(load_runs()) == json.loads(path.read_text(encoding="utf-8"))


def test_what_a_feature_adds_by_hand() -> None:
    """Five pairs with other features differ by 5 %, one with the same by 3 %: 4 % in quadrature."""
    one = RunFeatures(
        experts=False,
        accelerator="h100-sxm",
        generation="hopper",
        framework="megatron",
        software="nemo",
        stack="nemo-2025",
        pair="nemo on hopper",
        tuned=0,
        eager=False,
        adapters=False,
        precision="bf16",
        assumed=False,
        gpus=8,
        parameters=1e9,
        seq_len=4096,
    )
    fields = RunFeatures.__dataclass_fields__
    known = ValidatedRuns(
        ids=("a", "b", "c", "d"),
        sources=np.array(["one", "one", "two", "two"]),
        features={name: np.array([getattr(one, name)] * 4) for name in fields},
        errors=np.array([0.01, 0.06, 0.2, 0.23]),
        unseen=np.zeros(4),
        accelerator_out=np.zeros(4),
        fitted=np.ones(4, dtype=np.bool_),
    )
    features = {"a": ("x",), "b": ("x", "y"), "c": ("x",), "d": ("x",)}
    assert added_error(features, known) == pytest.approx(0.04)
