"""Launch files, logs and traces of trainers: one folder for each trainer."""

from shardwise.registry import Additions, Verb

_GROUP = "Launch"

ADDS = Additions(
    verbs={
        "export": Verb(
            group=_GROUP,
            summary="A plan as a launcher's configuration; GEMMs or graph as files.",
            home="launchers.cli.export:command",
        ),
        "import": Verb(
            group=_GROUP,
            summary="Model, strategy and stack of a trainer's launch file.",
            home="launchers.cli.import_launch:command",
        ),
        "diagnose": Verb(
            group=_GROUP,
            summary="What a measured run is slow at, and what to change.",
            home="launchers.cli.diagnose:command",
        ),
    },
    views=dict.fromkeys(("Diagnosis", "Export", "Launch", "LaunchFile"), "launchers.views"),
    saved={
        "diagnose": ("measured predicted findings", "launchers.diagnose.results:Diagnosis"),
    },
    functions={
        "tables_of_trace": "launchers.kineto.tables:tables_of_trace",
        "exported_things": "launchers.cli.export:exported_things",
        "launcher_of": "launchers.registry:launcher_of",
        "launcher_of_stack": "launchers.stacks:launcher_of_stack",
        "launcher_names": "launchers.registry:launcher_names",
        "read_launch": "launchers.registry:read_launch",
        "recognised_launcher": "launchers.registry:recognised_launcher",
        "unread_file": "launchers.unread:unread_file",
        "not_recognised": "launchers.registry:not_recognised",
        "space_for": "launchers.exportable:space_for",
        "why_not_written": "launchers.writing:why_not_written",
        "exportable_search": "launchers.exportable:exportable_search",
        "exportable_sweep": "launchers.exportable:exportable_sweep",
    },
)
