"""A bench that is interrupted, whose methods fail, that runs on batches."""

import pytest
from fake_methods import FakeMethod, fixed
from tiny_benches import PROMPTS, TOKENS, TUNING, bench, entry, fake_entry, methods_of, shown

from hierspec_lab.bench import results
from hierspec_lab.bench.methods import grids
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.bench.records import BenchSettings
from hierspec_lab.bench.turns import run_group


def test_a_bench_whose_time_is_over_sums_up_what_it_has(models, tmp_path):
    short = bench(models, [fake_entry("fake", fixed)], temperatures=(0.0, 1.0))
    short.seconds = 0.0
    data = short.run()
    assert data.finished
    for number, temperature in enumerate((0, 1)):
        for record in methods_of(data, number).values():
            assert len(record.runs) == 1
            assert record.final_summary.ms_per_token.n == 1
        said = f"temperature {temperature}: stopped after 1 of {len(PROMPTS)} prompts"
        assert any(note.startswith(said) for note in data.notes)


def test_an_interrupted_bench_is_summed_up(models, tmp_path):
    calls = iter(range(1000))

    def write(prompt, request):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return fixed(prompt, request)

    path = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        bench(models, [fake_entry("fake", write)], path).run()  # a warm-up, two rounds
    again = bench(models, [fake_entry("fake", fixed)], path)
    again.seconds = 0.0
    assert [len(record.runs) for record in methods_of(again.run()).values()] == [2, 2]
    assert results.read(path).finished


def test_a_file_without_a_measurement_binds_nobody(tmp_path):
    path = tmp_path / "r.json"
    results.write(path, results.make(BenchSettings(target="mistyped"), {}))
    fresh = results.make(BenchSettings(target="right"), {})
    assert results.resume(path, fresh) is fresh


def test_failures_are_rows_and_leave_the_others_alone(models):
    def broken(prompt, request):
        if tuple(prompt) == tuple(PROMPTS[1]):
            raise RuntimeError("the engine\nfell over")
        return fixed(prompt, request)

    def nowhere(given, temperature):
        raise Unavailable("no such engine here: pip install it")

    def buggy(given, temperature):
        raise MemoryError

    def half(given, temperature):
        def fails(prompt, request):
            raise OSError("no")

        return [FakeMethod("half", fails), FakeMethod("half", fixed)]

    data = bench(
        models,
        [
            fake_entry("broken", broken),
            entry("nowhere", nowhere),
            entry("buggy", buggy),
            entry("half", half),
            fake_entry("foreign", lambda prompt, request: [10**6, 1]),
            fake_entry("fine", fixed),
        ],
    ).run()
    found = methods_of(data)
    assert found["broken"].skipped == "RuntimeError: the engine fell over"
    assert found["broken"].runs == []
    assert found["nowhere"].skipped == "no such engine here: pip install it"
    assert found["buggy"].skipped == "MemoryError"
    assert "IndexError" in found["foreign"].skipped  # no token of the target's
    assert found["half"].skipped is None
    trials = found["half"].tuning.trials
    assert (trials[0].ms_per_token, trials[0].skipped) == (None, "OSError: no")
    assert len(found["fine"].runs) == len(found["plain"].runs) == 3
    assert "skipped broken: RuntimeError: the engine fell over" in shown(data)


def test_plain_decoding_must_run(models, monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("broken")

    monkeypatch.setattr(HierarchyMethod, "run", fails)
    with pytest.raises(ValueError, match="plain decoding cannot run: RuntimeError: broken"):
        bench(models, []).run()


def test_methods_warm_up_on_what_is_not_measured(models):
    log = []
    made = bench(models, [fake_entry("fake", fixed, log=log)])
    data = made.run()
    measured = [(tuple(prompt), i) for i, prompt in enumerate(PROMPTS)]
    assert [entry[1:] for entry in log[:4]] == [(tuple(TUNING[0]), len(PROMPTS)), *measured]
    for i in range(len(PROMPTS)):  # every method has a turn of its own
        assert {record.runs[i].turn for record in methods_of(data).values()} == {0, 1}


def test_a_batch_is_shared_out_among_its_runs(models):
    level = {"method": "draft_model", "model": models.drafts[1], "num_speculative_tokens": 3}
    method = HierarchyMethod("x", models, [level], verify="block")
    alone = [method.run(prompt, RunRequest(TOKENS)) for prompt in PROMPTS]
    together = method.run_batch(PROMPTS, RunRequest(TOKENS))
    assert [run.token_ids for run in together] == [run.token_ids for run in alone]
    drafted = sum(run.levels[0].num_draft_tokens for run in alone)
    assert sum(run.levels[0].num_draft_tokens for run in together) == pytest.approx(drafted)
    assert [run.seconds for run in together] == pytest.approx([together[0].seconds] * 3)
    assert together[0].levels[0].name == alone[0].levels[0].name


def test_batches_leave_out_who_has_none(models):
    level = {"method": "draft_model", "model": models.drafts[1], "num_speculative_tokens": 3}

    def ours(given, temperature):
        return [HierarchyMethod("ours", given, [level], verify="block")]

    data = bench(models, [entry("ours", ours), fake_entry("fake", fixed)], batch_size=3).run()
    found = methods_of(data)
    assert "--batch-size 1" in found["fake"].skipped
    assert found["ours"].summary.same_as_plain == 3
    assert [run.prompt for run in found["ours"].runs] == [0, 1, 2]
    # Sequences share calls and weights: neither prices nor the roofline are those of one alone.
    assert found["ours"].parameters
    assert found["ours"].summary.standardized_walltime_improvement is None
    below = data.roofline
    assert below.ms_per_token == pytest.approx(
        1000 / 3 * below.weight_bytes / below.bytes_per_second
    )
    with pytest.raises(Unavailable, match="--batch-size 1"):
        run_group(FakeMethod("x", fixed), PROMPTS, RunRequest(2))
    assert data.notes == [
        "tuned on batches of 1, measured on batches of 3: --tune-prompts 3 tunes on equal batches"
    ]


def test_batches_are_all_of_one_size(models):
    made = bench(models, [], batch_size=2)
    with pytest.raises(ValueError, match=r"3 prompts.*batches of 2.*--num-prompts 2 or 4"):
        made.run()
    assert made.data.cells == []  # nothing was tuned for it


def test_tuning_runs_on_batches_like_the_measured_ones(models):
    def ours(given, temperature):
        return grids.single("ours", given, "block")[:2]

    made = bench(models, [entry("ours", ours)], batch_size=3)
    made.tuning = [*TUNING * 3, *PROMPTS[:1]]
    data = made.run()
    found = methods_of(data)["ours"].tuning
    assert (found.prompts, found.batch_size) == (3, 3)
    assert data.notes == ["1 of 4 prompts to tune on are in no whole batch of 3"]
