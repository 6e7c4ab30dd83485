"""The explorer: a local page and the REST API that it shares its answers with."""

from shardwise.registry import Additions, Verb

ADDS = Additions(
    verbs={
        "explore": Verb(
            group="Predict",
            summary="A page with sliders in the browser, and the REST API.",
            home="web.cli:command",
        ),
    },
)
