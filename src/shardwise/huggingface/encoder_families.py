"""Families of encoders on the Hugging Face hub, one record for each: BERT's kin, and ViT.

`is_decoder` makes decoders of them. The head is that of `ForMaskedLM`; every word is predicted.
"""

from dataclasses import replace

from shardwise.huggingface.families import Family

_BERT = Family(
    kinds=("bert",),
    must=(
        ("position_embedding_type", "absolute", "relative positions are not modeled"),
        ("tie_word_embeddings", True, "an untied head, which has two biases, is not modeled"),
    ),
    grouped=False,
    causal="is_decoder",
    qkv_bias=True,
    out_bias=True,
    gated=False,
    activation="gelu",
    mlp_bias=True,
    norm="layernorm",
    norms="stream",
    final_norm=False,
    embedding_norm=True,
    position="learned",
    head_transform=True,
    head_bias=True,
    typed=True,
)
_PRE_NORM = replace(_BERT, norms="pre", final_norm=True)
_RECORDS = {
    "Bert": _BERT,
    "BertGeneration": replace(_BERT, kinds=("bert-generation",), head_transform=False, typed=False),
    "Camembert": replace(_BERT, kinds=("camembert",)),
    "Data2VecText": replace(_BERT, kinds=("data2vec-text",)),
    "MegatronBert": replace(_PRE_NORM, kinds=("megatron-bert",), embedding_norm=False),
    "Roberta": replace(_BERT, kinds=("roberta",)),
    "RobertaPreLayerNorm": replace(_PRE_NORM, kinds=("roberta-prelayernorm",)),
    "XLMRoberta": replace(_BERT, kinds=("xlm-roberta",)),
}
# Classes of a family: what a record is the same for.
_CLASSES = {
    "Bert": ("BertForMaskedLM", "BertLMHeadModel"),
    "BertGeneration": ("BertGenerationDecoder",),
}
_VIT = Family(
    kinds=("vit",),
    grouped=False,
    causal=False,
    qkv_bias="qkv_bias",
    out_bias=True,
    gated=False,
    activation="gelu",
    mlp_bias=True,
    norm="layernorm",
    position="sinusoidal",
    images=True,
)
ENCODERS: dict[str, Family] = {"ViTForImageClassification": _VIT, "ViTModel": _VIT} | {
    name: record
    for family, record in _RECORDS.items()
    for name in _CLASSES.get(family, (f"{family}ForMaskedLM", f"{family}ForCausalLM"))
}
"""The record of each class."""
