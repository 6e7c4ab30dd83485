"""Which modules of a PyTorch model become FSDP2 units."""

from shardwise.registry import Additions, Verb

ADDS = Additions(
    verbs={
        "fsdp": Verb(
            group="Search",
            summary="Optimal FSDP2 units of a model within a memory budget.",
            home="fsdp.cli:command",
        ),
    },
    views={"FsdpPlan": "fsdp.views"},
)
