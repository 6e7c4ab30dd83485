"""Models that shardwise unites: files, formulas, searches and tables, one folder for each.

`source` is always what faults call a file or an argument. Readers, translations and searches raise
an `InputError` with one fault for each thing that is wrong or that a tool has no word for.
"""

from shardwise.registry import Additions, Verb

ADDS = Additions(
    verbs={
        "convert": Verb(
            group="Catalog and files",
            summary="Convert files of other tools; write results as tables.",
            home="predecessors.cli.convert:command",
            before="schema",
        ),
    },
    formats=tuple(
        f"predecessors.{tool}:FORMATS" for tool in ("amped", "calculon", "simumax", "nersc")
    ),
    views=dict.fromkeys(("ReferenceEstimate", "ReferenceSearch"), "predecessors.views"),
    suites={
        "seqsel": (
            "sequence-parallelism paper: memory formulas, 8 measured steps and 10 passes",
            "predecessors.validate.seqsel:seqsel",
        ),
        "simumax": (
            "SimuMax's measured runs: peak memory and step time, 8 B200 and 8 A100",
            "predecessors.validate.simumax:simumax",
        ),
        "nersc-collectives": (
            "NCCL collectives on Perlmutter: 1 to 256 nodes of A100, 32 KiB to 8 GiB",
            "predecessors.validate.nersc_collectives:nersc_collectives",
        ),
        "amped": (
            "what AMPeD is compared with: 20 steps on 32 to 3,072 A100, GPipe's throughput on P100",
            "predecessors.validate.amped:amped",
        ),
    },
    functions={
        "amped_inputs": "predecessors.amped.inputs",
        "print_amped_import": "predecessors.amped.tables:print_imported",
        "reference_case": "predecessors.cases:case_of",
        "reference_estimate": "predecessors.cases:reference_estimate",
        "reference_search": "predecessors.search:reference_search",
        "reference_sweep": "predecessors.search:reference_sweep",
        "refuse_ours": "predecessors.search:refuse_ours",
        "reference_answers": "predecessors.cli.estimate",
        "search_verb": "predecessors.cli.search",
        "show_calculon_peers": "predecessors.cli.peers:show_calculon_peers",
        "perlmutter": "predecessors.validate.nersc_collectives:perlmutter",
        "predictions_by_references": "predecessors.validate.references:references",
    },
)
