"""Timelines: fates add up to the run's own counters, and pictures parse and do not overlap."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from numbered_chains import chain
from tabular_cases import chain as tabular_chain
from tabular_cases import drive, models, record_requests

from hierspec import Hierarchy, HierarchyConfig, TargetConfig, cli, preset
from hierspec.core.nodes import initial_states
from hierspec.core.round import verified
from hierspec.engine import trace as tracing
from hierspec.engine.trace import JsonLinesTracer, ListTracer
from hierspec.exact.interpreter import ExactInterpreter
from hierspec.lm.trees import Tree
from hierspec_lab.plotting.figures import GREEN, ORANGE, VERMILION
from hierspec_lab.simulation import CoinFlips, simulate
from hierspec_lab.timeline import chrome, html, read, svg, timelines
from hierspec_lab.timeline.events import as_record, read_records

PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8]]
PRESETS = ["autoregressive", "speculative", "hierarchy", "dynamic-windows", "interleaved",
           "branch", "prompt-lookup"]  # fmt: skip


def generated(tiny_family, name, tracer, prompts=PROMPTS, **options):
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    both = [tiny_family["small"], tiny_family["draft"]]
    few = {"autoregressive": 0, "prompt-lookup": 0, "speculative": 1, "branch": 1}
    drafts = both[: few.get(name, 2)]
    hierarchy = Hierarchy.from_config(preset(name, target, drafts))
    options = {"max_new_tokens": 24, "temperature": 1.0, "seed": 3, **options}
    generation = hierarchy.start(prompts, tracer=tracer, ignore_eos=True, **options)
    list(generation)
    return generation


@pytest.fixture(scope="module")
def run(tiny_family):
    """A batch of two through three levels: the generation and its events."""
    tracer = ListTracer()
    generation = generated(tiny_family, "hierarchy", tracer)
    return generation, tracer.events


def simulated(rates, budgets=(2, 3), rounds=4):
    tracer = ListTracer()
    costs = [1.0, 4.0, 16.0][-len(budgets) - 1 :]
    result = simulate(chain(budgets), CoinFlips(rates, seed=1), costs, rounds, tracer)
    return result, tracer.events


def elements(picture, kind):
    """Boxes of a class: (x, y, width, height, colour)."""
    found = []
    for node in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}rect"):
        if kind in node.get("class", "").split():
            numbers = [float(node.get(key)) for key in ("x", "y", "width", "height")]
            found.append((*numbers, node.get("fill")))
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_fates_add_up_to_the_counters_of_the_run(tiny_family, name):
    tracer = ListTracer()
    # Repeating text, so that looking up finds something.
    options = {"prompts": [[7] * 9, [3, 8] * 5], "temperature": 0.5}
    generation = generated(tiny_family, name, tracer, **options)
    found = timelines(tracer.events)
    assert [timeline.sequence for timeline in found] == [0, 1]
    drafted = 0
    for index, stats in generation.runtime.metrics.levels.items():
        counts = [timeline.count_judged(index) for timeline in found if index in timeline.levels]
        drafted += stats.num_draft_tokens
        if index != generation.root.index:
            assert sum(n for n, _ in counts) == stats.num_draft_tokens, stats.name
            assert sum(kept for _, kept in counts) == stats.num_accepted_tokens, stats.name
    assert (drafted > 0) == (name != "autoregressive")
    for timeline, result in zip(found, generation.results(), strict=True):
        assert tuple(cell.token for cell, _ in timeline.text) == result.token_ids
        start = result.num_prompt_tokens
        assert [cell.position - start for cell, _ in timeline.text] == list(range(24))


def test_several_drafts_of_one_place(tiny_family):
    level = {"method": "draft_model", "model": tiny_family["draft"]}
    levels = [{**level, "num_speculative_tokens": 3, "num_drafts": 3}]
    model = {"model": tiny_family["target"], "dtype": "float64"}
    hierarchy = Hierarchy.from_config(
        HierarchyConfig.from_dict({"target": model, "levels": levels, "verify": "rrs"})
    )
    tracer = ListTracer()
    generation = hierarchy.start(
        PROMPTS, tracer=tracer, max_new_tokens=30, temperature=1.0, seed=3, ignore_eos=True
    )
    list(generation)
    chosen = [
        event["emitted"][:1] != event["draft"][:1]
        for event in tracer.events
        if event["kind"] == "check" and event["num_accepted"]
    ]
    assert any(chosen), "a draft after the first should be kept now and then"
    found = timelines(tracer.events)
    stats = generation.runtime.metrics.levels[0]
    judged, kept = (sum(n) for n in zip(*(each.count_judged(0) for each in found), strict=True))
    checks = [event for event in tracer.events if event["kind"] == "check"]
    drafts = [[event["draft"], *event.get("others", ())] for event in checks]
    assert (judged, kept) == (sum(len(d) for ds in drafts for d in ds), stats.num_accepted_tokens)
    assert stats.num_draft_tokens == sum(len(Tree.merge(several)[0]) for several in drafts)
    for timeline, result in zip(found, generation.results(), strict=True):
        assert tuple(cell.token for cell, _ in timeline.text) == result.token_ids
        assert "unseen" not in {cell.fate for call in timeline.calls for cell in call.cells}


@pytest.mark.parametrize(("middle", "target"), [("tokenwise", "naive"), ("naive", "tokenwise")])
def test_follow_up_draws(tiny_family, middle, target):
    """What a rule draws after its check is not in the trace; counters add up all the same."""
    draft = {"method": "draft_model", "num_speculative_tokens": 3}
    levels = [
        {**draft, "model": tiny_family["small"]},
        {**draft, "model": tiny_family["draft"], "verify": middle},
    ]
    if target == "naive":
        levels = levels[:1]
    model = {"model": tiny_family["target"], "dtype": "float64"}
    hierarchy = Hierarchy.from_config(
        HierarchyConfig.from_dict({"target": model, "levels": levels, "verify": target})
    )
    tracer = ListTracer()
    generation = hierarchy.start(
        PROMPTS[:1], tracer=tracer, max_new_tokens=40, temperature=1.0, seed=3, ignore_eos=True
    )
    list(generation)
    assert "row" in {event["kind"] for event in tracer.events}
    (timeline,) = timelines(tracer.events)
    for index, stats in list(generation.runtime.metrics.levels.items())[:-1]:
        counters = (stats.num_draft_tokens, stats.num_accepted_tokens)
        assert timeline.count_judged(index) == counters
    result = generation.results()[0]
    for cell, _ in timeline.text:  # those the trace tells are where it says
        assert cell.token == result.token_ids[cell.position - result.num_prompt_tokens]
    kinds = {cell.kind for call in timeline.calls for cell in call.cells}
    picture = svg(tracer.events, texts=str)
    if target == "naive":
        assert len(timeline.text) < 40
        assert "tokens missing from the trace" in picture
    else:
        assert len(timeline.text) == 40
        assert "follow-up" in kinds
    assert overlaps(elements(picture, "cell") + elements(picture, "call")) == []


def test_the_writer_of_each_token_is_the_streams(tiny_family):
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    config = preset("hierarchy", target, [tiny_family["small"], tiny_family["draft"]])
    tracer = ListTracer()
    generation = Hierarchy.from_config(config).start(
        PROMPTS[:1], tracer=tracer, max_new_tokens=24, temperature=1.0, seed=3, ignore_eos=True
    )
    streamed = [event.level for event in generation]
    (timeline,) = timelines(tracer.events)
    assert [timeline.levels[writer] for _, writer in timeline.text] == streamed
    assert len(set(streamed)) == 3


def test_times_are_those_the_counters_sum(run):
    generation, events = run
    assert events[0]["began"] == 0
    calls = {(e["index"], e["began"]): e["seconds"] for e in events if e["began"] > 0}
    for index, stats in generation.runtime.metrics.levels.items():
        spent = sum(seconds for (level, _), seconds in calls.items() if level == index)
        assert spent == pytest.approx(stats.seconds, abs=1e-6)
        assert spent > 0


def test_without_a_tracer_no_event_is_made(tiny_family, monkeypatch):
    def refuse(*_):
        raise AssertionError("an event was made")

    monkeypatch.setattr(tracing, "event_of", refuse)
    generated(tiny_family, "speculative", None, max_new_tokens=4)
    with pytest.raises(AssertionError, match="an event"):
        generated(tiny_family, "speculative", ListTracer(), max_new_tokens=4)


def test_simulated_fates():
    always = [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0] * 3]
    result, events = simulated(always)
    (timeline,) = timelines(events)
    # Each round: 2 drafted, kept by the middle, which adds a bonus; the target rejects the first.
    assert timeline.fates()[0] == {"text": 0, "dropped": 8, "rejected": 0, "unseen": 0}
    assert timeline.fates()[1] == {"text": 0, "dropped": 0, "rejected": 12, "unseen": 0}
    assert [cell.kind for call in timeline.calls[:3] for cell in call.cells] == [
        "drafted", "drafted", "kept", "kept", "bonus", "recovered",
    ]  # fmt: skip
    assert timeline.count_judged(1) == (12, 0)
    end = max(call.began + call.seconds for call in timeline.calls)
    assert end * 1e3 == pytest.approx(result.ms_per_token * result.num_tokens)


def test_simulated_counters():
    result, events = simulated([[0.0, 0.7, 0.5], [0.0, 0.0, 0.8], [0.0] * 3], rounds=60)
    (timeline,) = timelines(events)
    for index in (0, 1):
        level = result.levels[index]
        assert timeline.count_judged(index) == (level.num_draft_tokens, level.num_accepted_tokens)
        assert 0 < level.num_accepted_tokens < level.num_draft_tokens
    fates = timeline.fates()
    assert min(fates[0][fate] for fate in ("text", "dropped", "rejected")) > 0
    assert sum(fates[0].values()) == level_tokens(events)
    assert fates[2]["text"] == result.num_tokens


def level_tokens(events):
    return sum(len(event["tokens"]) for event in events if event.get("leaf"))


def test_generations_that_share_a_trace_are_told_apart(tiny_family):
    tracer = ListTracer()
    for tokens in (1, 1, 9):
        generated(tiny_family, "speculative", tracer, PROMPTS[:1], max_new_tokens=tokens)
    found = timelines(tracer.events)
    assert [(s.generation, s.sequence, len(s.text)) for s in found] == [
        (0, 0, 1), (1, 0, 1), (2, 0, 9),
    ]  # fmt: skip
    assert elements(svg(tracer.events, 2), "cell") != elements(svg(tracer.events, 0), "cell")
    with pytest.raises(ValueError, match="sequences 0 to 2; got 3"):
        svg(tracer.events, 3)


def overlaps(boxes):
    """Pairs of boxes that share some of their inside, beyond rounding."""
    return [
        (a, b)
        for i, a in enumerate(boxes)
        for b in boxes[i + 1 :]
        if a[0] + a[2] > b[0] + 0.02
        and b[0] + b[2] > a[0] + 0.02
        and a[1] + a[3] > b[1] + 0.02
        and b[1] + b[3] > a[1] + 0.02
    ]


def test_nothing_in_the_picture_overlaps(run):
    picture = svg(run[1])
    timeline = timelines(run[1])[0]
    cells, calls = elements(picture, "cell"), elements(picture, "call")
    assert len(calls) == len(timeline.calls)
    assert len(cells) == sum(len(call.cells) for call in timeline.calls)
    assert overlaps(cells + calls + elements(picture, "offered")) == []
    width = float(ElementTree.fromstring(picture).get("width"))
    assert all(box[0] >= 0 and box[0] + box[2] <= width for box in cells + calls)
    assert len({round(box[1]) for box in calls}) == 3  # a row per level


def test_times_along_the_axis_are_round():
    _, events = simulated([[0.0, 0.7, 0.5], [0.0, 0.0, 0.8], [0.0] * 3], rounds=40)
    picture = svg(events)
    assert "e+" not in picture
    assert ">1 s</text>" in picture


def test_colours_and_draft_lengths_of_the_picture(run):
    timeline, picture = timelines(run[1])[0], svg(run[1])
    cells = elements(picture, "cell")
    for fate, colour in (("text", GREEN), ("dropped", ORANGE), ("rejected", VERMILION)):
        expected = sum(counts[fate] for counts in timeline.fates().values())
        assert sum(box[4] == colour for box in cells) == expected
    checks = [call for call in timeline.calls if call.index == timeline.root and call.drafted]
    heights = [round(box[3] / 4) for box in elements(picture, "offered")]
    assert heights == [call.drafted for call in checks]
    assert len(set(heights)) > 1
    kept = [round(box[3] / 4) for box in elements(picture, "kept")]
    assert kept == [call.accepted for call in checks]


@pytest.mark.parametrize("draw", [svg, html])
def test_any_text_can_be_shown(run, draw):
    nasty = ["<&\"'>", "\x00\x1b\ud800", "a\nb\n", "\u3000漢字", "", "x" * 150]
    picture = draw(run[1], texts=lambda token: nasty[token % len(nasty)])
    body = picture.removeprefix("<!DOCTYPE html>")
    words = "".join(ElementTree.fromstring(body.encode()).itertext())
    assert "<&\"'>" in words
    assert "漢字" in words
    assert "⏎" in words


def test_the_page_shows_every_sequence(run):
    page = html(run[1])
    tree = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}svg"))) == 2
    assert "prefers-color-scheme:dark" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # self-contained
    row = next(row for row in tree.iter("tr") if row[0].text == "draft" or "draft" in row[0].text)
    (index,) = [i for i, name in timelines(run[1])[0].levels.items() if name == row[0].text]
    fates = timelines(run[1])[0].fates()[index]
    assert [cell.text for cell in row][3:] == [str(n) for n in fates.values()]


def test_slices_of_a_track_do_not_overlap(run):
    data = json.loads(json.dumps(chrome(run[1])))
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    tracks = {(event["pid"], event["tid"]) for event in slices}
    assert len(tracks) == 6
    for pid in (0, 1):
        own = [event for event in slices if event["pid"] == pid]
        # One sequence asks for one thing at a time, whatever the level.
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in pairwise(own))
    checks = [event["args"] for event in slices if event["cat"] == "check"]
    assert any(args["num_accepted"] < args["num_draft_tokens"] for args in checks)
    metadata = [event for event in data["traceEvents"] if event["name"] == "thread_sort_index"]
    assert min(metadata, key=lambda e: e["args"]["sort_index"])["tid"] == timelines(run[1])[0].root


def test_interpreters_without_a_clock_are_refused():
    root = tabular_chain(models("peaked", 2), ["block"], [2])
    tracer = ListTracer()
    coroutine = record_requests(verified(root, (), 9, initial_states(root)), tracer)
    drive(coroutine, ExactInterpreter(root, 3))
    with pytest.raises(ValueError, match="without a clock"):
        timelines(tracer.events)


def written(path, events, end="\n"):
    stream = io.StringIO()
    tracer = JsonLinesTracer(stream)
    for event in events:
        tracer.record(event)
    path.write_text(stream.getvalue().rstrip("\n") + end)
    return path


def test_reading_gives_the_events_back(run, tmp_path):
    path = written(tmp_path / "t.jsonl", run[1])
    assert [{**e, "time": 0} for e in read(path)] == [{**e, "time": 0} for e in run[1]]
    assert read_records(path) == [as_record(event) for event in run[1]]
    assert timelines(read_records(path))[0].fates() == timelines(run[1])[0].fates()
    assert svg(read(path)) == svg(run[1])


def test_an_interrupted_last_line_is_left_out(run, tmp_path):
    path = written(tmp_path / "t.jsonl", run[1], '\n{"time": 1.5, "ki')
    assert len(read(path)) == len(run[1])
    written(path, run[1], '\n{"time": 1.5, "ki\n')
    says = rf"t.jsonl, line {len(run[1]) + 1}: not valid JSON.*write it again"
    with pytest.raises(ValueError, match=says):
        read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "dance"}, "kind is 'dance'; there are: draft, check, row"),
        ({"began": None}, "began must be a number"),
        ({"seconds": -1}, "seconds must be at least 0"),
        ({"seconds": float("nan")}, "seconds must be a finite number"),
        ({"index": True}, "index must be an integer"),
        ({"level": 3}, "level must be a string"),
        ({"emitted": "12"}, "emitted must be a list"),
        ({"owners": [0]}, "draft tokens have 1 owners"),
        ({"num_accepted": 99}, "num_accepted is 99"),
        ({"others": [1]}, r"others\[0\] must be a list"),
    ],
)
def test_damaged_lines_are_named(tmp_path, change, message):
    _, events = simulated([[0.0, 1.0, 1.0]] * 3)
    at = next(i for i, event in enumerate(events) if event["kind"] == "check")
    path = written(tmp_path / "t.jsonl", [*events[:at], {**events[at], **change}, *events[at:]])
    with pytest.raises(ValueError, match=rf"t\.jsonl, line {at + 1}: .*{message}"):
        read(path)


@pytest.mark.parametrize("text", ["", "\n\n", '{"half'])
def test_an_empty_trace_is_refused(tmp_path, text):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ValueError, match="holds no events"):
        read(tmp_path / "t.jsonl")


@pytest.fixture
def trace(run, tmp_path):
    return written(tmp_path / "t.jsonl", run[1])


@pytest.mark.parametrize("ending", ["svg", "html", "json"])
def test_the_command(run, trace, capsys, ending):
    out = trace.with_suffix(f".{ending}")
    assert cli.run(["timeline", str(trace), "-o", str(out)]) == 0
    assert "2 sequences" in capsys.readouterr().out
    text = out.read_text(encoding="utf-8")
    expected = {"svg": svg, "html": html, "json": chrome}[ending](run[1])
    assert (json.loads(text) if ending == "json" else text) == expected


def test_texts_of_a_tokenizer(run, trace):
    out = trace.with_suffix(".svg")
    words = ["-o", str(out), "--sequence", "1", "--tokenizer", "zoo:small"]
    assert cli.run(["timeline", str(trace), *words]) == 0
    assert "written by" in out.read_text(encoding="utf-8")
    assert "written by" not in svg(run[1], 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["t.jsonl", "-o", "t.gif"], "a timeline ends in .svg, .html, .json"),
        (["t.json", "-o", "t.svg"], "a timeline that is drawn already"),
        (["none.jsonl", "-o", "t.svg"], "cannot read the trace"),
        (["t.jsonl", "-o", "no/such/t.svg"], "cannot write"),
        (["t.jsonl", "-o", "t.html", "--sequence", "1"], "--sequence goes with .svg"),
        (["t.jsonl", "-o", "t.svg", "--sequence", "7"], "sequences 0 to 1; got 7"),
        (["t.jsonl", "-o", "t.svg", "--tokenizer", "nowhere"], "no tokenizer at 'nowhere'"),
    ],
)
def test_mistakes_on_the_command_line(trace, capsys, monkeypatch, words, message):
    monkeypatch.chdir(trace.parent)
    Path("t.json").write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": []}))
    assert cli.run(["timeline", *words]) == 2
    assert message in capsys.readouterr().err
