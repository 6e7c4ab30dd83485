"""Attention over keys that an indexer selects, and over compressed keys."""

from typing import Self

from pydantic import model_validator

from shardwise.config.base import ConfigBase, Count


class Indexer(ConfigBase):
    """Selection of the keys of each query by a small attention of its own.

    (DeepSeek-V3.2; MiniMax-M3, whose blocks of keys are selected by the largest score in them.)
    """

    heads: Count
    """Heads that score queries against keys; all share one key."""
    head_dim: Count
    """Width of these heads."""
    top_k: Count
    """Keys that each query attends to, or blocks of keys."""
    block: Count = 1
    """Keys of a block that is selected as one; 1: single keys."""
    pool: Count = 1
    """Tokens that one key of the indexer stands for."""
    shared: bool = False
    """Whether the layer has no indexer: it uses the selection of the last layer that has one."""

    @model_validator(mode="after")
    def _blocks_or_pools(self) -> Self:
        if self.block > 1 and self.pool > 1:
            raise ValueError("pool: selects single keys; block must be 1")
        return self


class Compressed(ConfigBase):
    """Attention of one key, which is also the value, within a window and over compressed keys.

    (DeepSeek-V4.) Queries are projected by way of a narrow width, and so is the output, in groups
    of heads.
    """

    q_rank: Count
    """Width that queries are compressed to."""
    ratio: Count | None = None
    """Tokens that a compressed key is made of; None: there are none, only the window. With an
    indexer, each is made of twice as many that overlap."""
    output_groups: Count
    """Groups of heads whose outputs are compressed apart."""
    output_rank: Count
    """Width that the output of a group is compressed to."""
