from dataclasses import replace

import pytest

from cachecraft_rag.bench.quality.data import Passage, Question
from cachecraft_rag.bench.quality.records import Record
from cachecraft_rag.bench.quality.result import COLUMNS, QualityResult
from cachecraft_rag.bench.quality.summary import summarise
from cachecraft_rag.bench.quality.tables import check_shown, comparison_table, result_tables
from cachecraft_rag.bench.quality.variants import FULL, NAIVE, NO_CONTEXT, Variant
from cachecraft_rag.errors import InvalidInput

QUESTIONS = [Question(f"q{number}", ("right",), (Passage("", "text"),)) for number in range(5)]
FIRST, LARGE, BLEND = Variant("first", 0.15), Variant("first", 0.3), Variant("blend", 0.15)


def record(kl, answer="right", share=0.15):
    return Record(answer, (1,), (kl,), (kl == 0.0,), share, None, None)


def result(scale, questions=QUESTIONS, **fields):
    """The divergences of question i are i + 1 times those of the first."""
    answers = [
        {
            FULL: record(0.0, share=1.0),
            NO_CONTEXT: record(2.0, "no", 0.0),
            NAIVE: record(0.4 * scale * number, share=0.0),
            FIRST: record(0.2 * scale * number),
            LARGE: record(0.1 * scale * number, share=0.3),
            BLEND: record(0.05 * scale * number, "right" if number % 2 else "no"),
        }
        for number in range(1, len(questions) + 1)
    ]
    defaults = {"model": "m", "dtype": "float32", "data": "set", "max_tokens": 16, "min_run": 1, "seed": 0}
    return QualityResult(
        **{**defaults, **fields},
        questions=len(questions),
        asked=len(questions),
        context_tokens=1234.5,
        full_fails=0.0,
        variants=summarise(questions, answers),
        machine={},
        question_ids=tuple(question.digest for question in questions),
    )


def rows(text):
    """Cells of each line of a table, by the first of them; the last table's where there are several."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {cells[0]: cells[1:] for cells in lines}


def test_each_policy_at_each_ratio_and_all_at_the_given_one():
    text = result_tables(result(1.0), [0.15])
    grid, full = text.split("At 15%:")
    assert rows(grid)["policy"] == ["15%", "30%"]
    assert rows(grid)["`first`"] == ["0.600 (15.0%)", "0.300 (30.0%)"]
    assert rows(grid)["`blend`"] == ["0.150 (15.0%)", "-"]
    assert set(rows(full)) == {"way", "---", "full prefill", "no context", "`none 0`", "`first 0.15`", "`blend 0.15`"}
    assert rows(full)["way"] == list(COLUMNS)
    assert rows(full)["`first 0.15`"][1].startswith("0.50")


def test_every_row_of_a_table_is_as_wide_as_its_header():
    for table in result_tables(result(1.0), [0.15, 0.3]).split("\n\n"):
        assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) <= 1


def test_two_results_are_compared_way_by_way_over_the_questions_that_both_have():
    text = comparison_table(result(1.0, alone=False), result(2.0, QUESTIONS[:3]))
    assert "3 questions in both" in text
    assert "over the same way of **set: 3 questions, m in float32, chunks computed alone**" in text
    found = rows(text)
    assert set(found) == {"way", "---", "`none 0`", "`first 0.15`", "`first 0.3`", "`blend 0.15`"}
    # Both sides of each question differ by the same factor, so that no draw gives another.
    assert found["`first 0.15`"] == ["0.400", "0.800", "0.50", "1.00", "1.00", "1.00"]
    assert found["`blend 0.15`"][3:5] == ["0.67", "0.67"]


def test_all_may_be_set_against_one_way():
    found = rows(comparison_table(result(1.0), result(1.0), ["blend 0.15"], over="first 0.15"))
    assert found["`blend 0.15`"][:3] == ["0.150", "0.600", "0.25"]
    assert found["`blend 0.15`"][3] == "0.60"
    assert "[" in found["`blend 0.15`"][5], "F1 differs between questions, so its ratio has an interval"


def test_a_ratio_over_nothing_is_none():
    zero = result(0.0)
    assert rows(comparison_table(result(1.0), zero, ["first 0.15"]))["`first 0.15`"][2] == "-"


def test_no_question_in_common_is_said():
    old = replace(result(1.0), question_ids=())
    with pytest.raises(InvalidInput, match=r"no question in common.*--minutes 0"):
        comparison_table(result(1.0), old)


@pytest.mark.parametrize("arguments", [{"ways": ["other 0.1"]}, {"over": "other 0.1"}])
def test_an_unknown_way_is_named_with_those_there_are(arguments):
    with pytest.raises(InvalidInput, match=r"'other 0\.1' is no way .*it has full prefill, .*blend 0\.15"):
        comparison_table(result(1.0), result(1.0), **arguments)


def test_ratios_that_look_alike_are_told_apart():
    ratios = {0.15: 0.125, 0.3: 0.005}
    found = result(1.0)
    variants = tuple(replace(v, ratio=ratios.get(v.ratio, v.ratio)) for v in found.variants)
    grid, full = result_tables(replace(found, variants=variants), [0.07, 0.29, 0.125]).split("At 7%, 29%, 12.5%:")
    assert rows(grid)["policy"] == ["0.5%", "12.5%"]
    assert "`first 0.125`" in rows(full)


def test_ratios_to_show_are_those_that_some_result_has():
    few = result(1.0)
    few = replace(few, variants=tuple(v for v in few.variants if v.ratio != 0.3))
    assert check_shown([few, result(1.0)], [0.3, 0.15]) == [0.3, 0.15]
    with pytest.raises(InvalidInput, match=r"ratio 0\.3 is in no result: give --ratios from 0, 0\.15$"):
        check_shown([few], [0.15, 0.3])
    with pytest.raises(InvalidInput, match=r"no ratio to show: give --ratios from 0, 0\.15, 0\.3$"):
        check_shown([few, result(1.0)], [])
    with pytest.raises(InvalidInput, match=r"ratio 15 is not a share"):
        check_shown([few], [15])


def test_no_way_in_common_is_said_with_those_there_are():
    one, other = result(1.0), result(1.0)
    one = replace(one, variants=tuple(v for v in one.variants if v.name == "blend"))
    other = replace(other, variants=tuple(v for v in other.variants if v.name == "first"))
    with pytest.raises(InvalidInput, match=r"a\.json has blend 0\.15 and b\.json has first 0\.15, first 0\.3; set one"):
        comparison_table(one, other, names=("a.json", "b.json"))
    assert "`blend 0.15`" in comparison_table(one, other, over="first 0.3")


def test_answers_of_other_lengths_are_not_compared():
    with pytest.raises(InvalidInput, match=r"up to 16 tokens \(a\) and of up to 32 \(b\) .* the same --max-tokens"):
        comparison_table(result(1.0), result(1.0, max_tokens=32), names=("a", "b"))


@pytest.mark.parametrize("fields", [{"model": "n"}, {"dtype": "bfloat16"}])
def test_it_is_said_that_models_differ(fields):
    remark = "The models or their dtypes differ: each KL is to the own full prefill"
    assert remark in comparison_table(result(1.0), result(1.0, **fields), ["blend 0.15"])
    assert remark not in comparison_table(result(1.0), result(1.0), ["blend 0.15"])
