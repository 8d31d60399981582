"""Items, judgments and histories: read from tables, or from public data sets."""

from restd.data.catalog import Catalog
from restd.data.check import DataCheck, check_data
from restd.data.dataset import EVIDENCE, Task, Written, open_dataset, task_in, write_dataset
from restd.data.datasets import DATASETS, DatasetEntry, make_source
from restd.data.event_spans import EventSpans
from restd.data.histories import Histories, History, Prefixes, Query, leave_one_out, read_histories
from restd.data.hold_out import HeldOut, hold_out_items
from restd.data.judgments import read_judgments, refuse_unknown_items
from restd.data.pairs import Pairs, read_pairs
from restd.data.pseudo_table import write_pseudo_table
from restd.data.schema import GRADES, SPLITS
from restd.data.source import Source

__all__ = [
    "DATASETS",
    "EVIDENCE",
    "GRADES",
    "SPLITS",
    "Catalog",
    "DataCheck",
    "DatasetEntry",
    "EventSpans",
    "HeldOut",
    "Histories",
    "History",
    "Pairs",
    "Prefixes",
    "Query",
    "Source",
    "Task",
    "Written",
    "check_data",
    "hold_out_items",
    "leave_one_out",
    "make_source",
    "open_dataset",
    "read_histories",
    "read_judgments",
    "read_pairs",
    "refuse_unknown_items",
    "task_in",
    "write_dataset",
    "write_pseudo_table",
]
