"""Tables of systems against numbers made by hand: bold, underline, relative improvement, marks, costs."""

import csv
import io

import pytest

from restd.analyses import AnalysisResult, study_result, systems_result
from restd.report.page import make_page
from restd.report.tables import to_csv, to_latex, to_markdown


def score(mean, deviation=None):
    interval = {"mean": mean, "low": mean - 1, "high": mean + 1}
    return {"mean": mean, "deviation": deviation, "seeds": 1 if deviation is None else 3, "interval": interval}


def difference(row, mean, adjusted):
    return {"row": row, "mean": mean, "low": mean - 0.5, "high": mean + 0.5, "p": adjusted, "adjusted": adjusted}


def cost(seconds, *, whole=True, own_process=True):
    machine = {"processor": "x86", "threads": {"torch": 2, "faiss": 2}}
    return {
        "seconds": seconds, "cpu": 2 * seconds, "peak": 512 << 20, "whole": whole, "own_process": own_process,
        "machine": machine,
    }  # fmt: skip


@pytest.fixture
def summary():
    """CaLIR 7.50 and ResTD over it 9.28, as in the paper; BM25 better in the second measure."""
    query = {
        "milliseconds": 4.25,
        "queries": 100,
        "peak": 600 << 20,
        "own_process": True,
        "machine": cost(1)["machine"],
    }
    return {
        "kind": "systems",
        "measures": ["NDCG@10", "Recall@100"],
        "seeds": [42],
        "statistics": "conditional",
        "settings": {"budget": {"name": "small", "train": {"updates": 100, "batch": 8}}},
        "card": {"split": "test", "items": 5_000, "queries": {"judged": 300}},
        "systems": {
            "bm25": {"label": "BM25", "summary": "Words.", "source": "", "restd": "it does not generate"},
            "calir": {"label": "CaLIR", "summary": "Steps.", "source": "A paper", "restd": "yes", "objective": "base",
                      "index": "rqvae-1"},
            "ltrgr": {"label": "LTRGR", "summary": "Margins.", "source": "A paper", "objective": "ltrgr",
                      "index": "rqvae-1", "restd": "it has an objective of its own (ltrgr)"},
        },
        "left_out": {"merge": "it learns from training queries, and there are none"},
        "failed": {},
        "encoding": cost(30),
        "rows": {
            "bm25": {"system": "bm25", "objective": "", "ours": False, "seeds": {}, "NDCG@10": score(5.0),
                     "Recall@100": score(80.0), "costs": {"indexing": cost(0.5), "query": query}},
            "calir": {"system": "calir", "objective": "base", "ours": False, "seeds": {"1": {}, "2": {}, "3": {}},
                      "NDCG@10": score(7.5, 0.25), "Recall@100": score(70.0, 0.5),
                      "costs": {"indexing": cost(10), "training": cost(60, whole=False), "query": query}},
            "ltrgr": {"system": "ltrgr", "objective": "ltrgr", "ours": False, "seeds": {"1": {}},
                      "NDCG@10": score(7.5), "Recall@100": score(60.0),
                      "costs": {"indexing": cost(10), "training": cost(9, own_process=False), "query": None}},
            "calir+restd": {"system": "calir", "objective": "restd", "ours": True, "seeds": {"1": {}, "2": {}, "3": {}},
                            "NDCG@10": score(9.28, 0.1), "Recall@100": score(75.0, 0.2),
                            "against_base": {"NDCG@10": difference("calir", 1.78, 0.01),
                                             "Recall@100": difference("calir", 5.0, 0.2)},
                            "against_best": {"NDCG@10": difference("calir", 1.78, 0.01),
                                             "Recall@100": difference("bm25", -5.0, 0.03)},
                            "costs": {"indexing": cost(10), "training": cost(70), "query": query}},
        },
    }  # fmt: skip


@pytest.fixture
def tables(summary):
    return {table.name: table for table in systems_result(summary).tables}


def test_the_best_is_bold_and_the_best_of_the_others_underlined(tables):
    main = tables["main"]
    assert [row[0] for row in main.rows] == ["BM25", "CaLIR", "LTRGR", "CaLIR + ResTD"]
    assert main.rows[1][1:] == ("7.50 ± 0.25", "70.00 ± 0.50")
    assert main.rows[3][1:] == ("9.28 ± 0.10†‡", "75.00 ± 0.20‡")
    assert set(main.best) == {(3, 1), (0, 2)}
    assert set(main.underlined) == {(1, 1), (2, 1), (0, 2)}  # a tie is underlined twice


def test_underline_in_every_format(tables, summary):
    latex = to_latex(tables["main"]).splitlines()
    assert r"BM25 & 5.00 & \underline{\textbf{80.00}} \\" in latex
    assert r"CaLIR & \underline{7.50 $\pm$ 0.25} & 70.00 $\pm$ 0.50 \\" in latex
    assert r"CaLIR + ResTD & \textbf{9.28 $\pm$ 0.10$\dagger$$\ddagger$} & 75.00 $\pm$ 0.20$\ddagger$ \\" in latex
    assert sum(line.count("{") - line.count("}") for line in latex) == 0
    assert "| BM25 | 5.00 | <u>**80.00**</u> |" in to_markdown(tables["main"]).splitlines()
    assert next(csv.reader(io.StringIO(to_csv(tables["main"])))) == ["System", "NDCG@10", "Recall@100"]
    page = make_page([systems_result(summary)], summary, title="Systems")
    assert '<td class="best underlined">80.00</td>' in page
    assert '<td class="underlined">7.50 ± 0.25</td>' in page


def test_relative_improvements_are_the_papers(tables):
    rows = dict((row[0], row[1:]) for row in tables["improvements"].rows)
    assert rows["CaLIR + ResTD over CaLIR"] == ("+23.73", "+7.14")
    assert rows["CaLIR + ResTD over the best other system"] == ("+23.73", "-6.25")


def test_differences_have_intervals(tables):
    rows = dict((row[0], row[1:]) for row in tables["gains"].rows)
    assert rows["CaLIR + ResTD − CaLIR"][0] == "+1.78 [+1.28, +2.28]"


def test_costs_say_what_was_not_measured(tables):
    rows = {row[0]: row[1:] for row in tables["costs"].rows}
    assert rows["BM25"] == ("0.5", "1.0", "512", "–", "–", "–", "4.2", "600")
    assert rows["CaLIR"][3:6] == ("≥ 60.0", "≥ 120.0", "≥ 512")
    assert rows["LTRGR"][3:] == ("9.0", "18.0", "–", "–", "–")
    assert "threads: 2" in tables["costs"].notes[2]
    assert "(30 s, 60 s of CPU)" in tables["costs"].notes[0]


def test_the_text_names_what_is_shared_and_what_is_missing(summary):
    result = study_result(summary)
    assert "3 systems on one catalogue of 5,000 items, evaluated on 300 test queries." in result.says
    assert "100 updates of 8 pairs, the same pairs" in result.says
    assert "ResTD is not laid over LTRGR: it has an objective of its own (ltrgr)." in result.says
    assert "merge is not in the table: it learns from training queries, and there are none." in result.says
    assert AnalysisResult.from_dict(result.to_dict()).to_dict() == result.to_dict()


def test_systems_alone_have_no_improvements(summary):
    del summary["rows"]["calir+restd"]
    names = [table.name for table in systems_result(summary).tables]
    assert names == ["main", "costs", "what"]
    assert "not laid over" not in systems_result(summary).says
