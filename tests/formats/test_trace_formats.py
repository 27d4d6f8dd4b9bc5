"""Step logs of other engines as sequential traces, and counters as acceptance by position."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specsched import formats
from specsched.errors import FormatError
from specsched.trace import load_trace

DATA = Path(__file__).parent / "data"


def test_sglang_dump_in_cap_accept_mode_is_uncensored():
    found = formats.read(DATA / "sglang_dump_cap_accept.json")
    trace = found.object
    assert (found.kind, found.notes, trace.mode) == ("trace", (), "sequential")
    assert not trace.confidence_sees_token
    # Records come in the order of forward_ct: request a then b at step 10, b again at step 11.
    assert trace.request.tolist() == [0, 1, 1]
    assert trace.position.tolist() == [0, 0, 4]
    # correct_drafts + cap_trim: the whole block's acceptance.
    assert trace.accepted.tolist() == [1, 3, 3]
    assert trace.prompt_tokens.tolist() == [100, 66, 66]
    np.testing.assert_allclose(1 / (1 + np.exp(-trace.confidence_logit[0])), [0.9, 0.5, 0.2], rtol=1e-5)


def test_sglang_dump_in_compact_mode_marks_what_it_cannot_know(tmp_path):
    found = formats.read(DATA / "sglang_dump_compact.json")
    trace = found.object
    # Request a, step 1: one draft verified, one accepted, two never tried. Request b rejected within its
    # window.
    assert trace.metadata["censored_rows"] == 1
    assert any("Censored: in 1 of 3 rows" in note for note in found.notes)
    assert any("Censored" in warning for warning in trace.warnings)
    trace.save(tmp_path / "t.parquet")
    assert any("Censored" in warning for warning in load_trace(tmp_path / "t.parquet").warnings)


def test_sglang_dump_is_found_bare_and_inside_a_server_answer(tmp_path):
    inner = json.loads((DATA / "sglang_dump_cap_accept.json").read_text())["internal_states"][0]
    for name, value in (("a.json", inner), ("b.json", inner["dspark_info_record"])):
        (tmp_path / name).write_text(json.dumps(value))
        assert len(formats.read(tmp_path / name).object) == 3


def edited_dump(tmp_path, edit, name="sglang_dump_compact.json"):
    dump = json.loads((DATA / name).read_text())
    edit(dump["internal_states"][0]["dspark_info_record"])
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(dump))
    return path


def test_sglang_dump_contradictions_are_named(tmp_path):
    def too_many(record):
        record["records"][0]["reqs"][0]["correct_drafts"] = 2

    with pytest.raises(FormatError, match="forward_ct 1, rid a: 2 drafts accepted of 1 verified"):
        formats.read(edited_dump(tmp_path, too_many))

    def no_confidence(record):
        for step in record["records"]:
            for request in step["reqs"]:
                del request["confidence"]

    with pytest.raises(FormatError, match="none with `confidence`"):
        formats.read(edited_dump(tmp_path, no_confidence))

    def wild(record):
        record["records"][0]["reqs"][0]["confidence"][1] = 1.5

    with pytest.raises(FormatError, match=r"position 2: 1\.5 is not a probability"):
        formats.read(edited_dump(tmp_path, wild))


def test_llamacpp_steps_become_one_request_per_slot():
    found = formats.read(DATA / "llamacpp_steps.jsonl")
    trace = found.object
    assert trace.confidence_sees_token
    assert trace.block_size == 3
    assert trace.request.tolist() == [0, 0, 1]
    assert trace.accepted.tolist() == [2, 1, 0]
    assert trace.position.tolist() == [0, 3, 0]
    # The gate stopped the second block after one draft: the rest counts as never acceptable.
    assert trace.confidence_logit[1, 1] < -20
    assert any("1 of 3 blocks stopped early" in note for note in found.notes)


def test_llamacpp_rows_per_position_are_grouped_at_index_zero():
    trace = formats.read(DATA / "llamacpp_positions.jsonl").object
    assert trace.accepted.tolist() == [1, 2]
    assert trace.block_size == 2


def bank(tmp_path, scores=True, **changes):
    rounds = [
        ("m", "s", "c", "chat", 0, 0, 1),
        ("m", "s", "c", "chat", 0, 0, 0),
        ("m", "s", "c", "math", 1, 0, 0),
    ]
    names = ["model", "speculator", "config", "category", "prompt_idx", "turn", "round_idx"]
    columns = {name: list(values) for name, values in zip(names, zip(*rounds, strict=True), strict=True)}
    flags = {"accept": [0, 2, 1], "acc0": [0, 1, 1], "acc1": [None, 1, 0]}
    pq.write_table(pa.table({**columns, **flags, **changes}), tmp_path / "acceptance.parquet")
    if scores:
        confidence = {"conf0": [0.3, 0.9, 0.8], "conf1": [None, 0.7, 0.4]}
        pq.write_table(pa.table({**columns, **confidence}), tmp_path / "speculator.parquet")
    return tmp_path / "acceptance.parquet"


def test_inference_lab_bank_is_joined_on_the_round(tmp_path):
    trace = formats.read(bank(tmp_path)).object
    assert trace.confidence_sees_token
    assert trace.metadata["drafter"] == "s"
    # Rounds in order within a request, whatever the order of the rows.
    assert trace.accepted.tolist() == [2, 0, 1]
    assert trace.position.tolist() == [0, 3, 0]
    assert [trace.domain_names[i] for i in trace.domain] == ["chat", "chat", "math"]
    np.testing.assert_allclose(1 / (1 + np.exp(-trace.confidence_logit[:, 0])), [0.9, 0.3, 0.8], rtol=1e-5)


def test_inference_lab_bank_without_scores_is_acceptance_by_position(tmp_path):
    found = formats.read(bank(tmp_path, scores=False))
    assert found.kind == "acceptance"
    assert found.object.survival.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_inference_lab_bank_refuses_a_count_with_the_bonus_and_mixed_models(tmp_path):
    with pytest.raises(FormatError, match=r"row 1: accept is 1, but acc0\.\. begins with 0 ones"):
        formats.read(bank(tmp_path, accept=[1, 2, 1]))
    mixed = bank(tmp_path, config=["c", "c", "d"])
    with pytest.raises(FormatError, match="several values of config"):
        formats.read(mixed)
    with pytest.raises(FormatError, match=r"acceptance\.parquet beside it"):
        formats.read(tmp_path / "speculator.parquet")


def specspecs(tmp_path, **changes):
    rows = {
        "run_id": ["r", "r", "r", "r"],
        "sequence_id": [0, 0, 0, 1],
        "step": [0, 1, 2, 0],
        "t": [0, 3, 4, 0],
        "draft_tokens": [[1, 2], [3, 4], [5, 6], [7, 8]],
        "acceptances": [[True, True], [False, False], [True, False], [True, True]],
        "k": [2, 2, 2, 2],
        "acceptance_length": [2, 0, 1, 2],
        "emitted_token": [9, 9, 9, 9],
    }
    path = tmp_path / "drafts.parquet"
    pq.write_table(pa.table({**rows, **changes}), path)
    return path


@pytest.mark.parametrize("length", [[2, 0, 1, 2], [3, 1, 2, 3]])
def test_specspecs_flags_decide_what_the_length_counts(tmp_path, length):
    found = formats.read(specspecs(tmp_path, acceptance_length=length))
    assert found.kind == "acceptance"
    assert found.object.survival.tolist() == pytest.approx([0.75, 0.5])
    assert found.object.conditional.tolist() == pytest.approx([0.75, 2 / 3])
    assert found.object.mean_length == pytest.approx(1 + 5 / 4)


def test_specspecs_contradiction_is_refused(tmp_path):
    with pytest.raises(FormatError, match="contradicts itself"):
        formats.read(specspecs(tmp_path, acceptance_length=[2, 1, 1, 2]))


def test_modelopt_rates_are_conditional_and_marginal_and_never_confused(tmp_path):
    acceptance = formats.read(DATA / "modelopt_profile.json").object
    assert acceptance.conditional.tolist() == pytest.approx([0.6, 0.5, 0.0])
    assert acceptance.survival.tolist() == pytest.approx([0.6, 0.3, 0.0])
    assert acceptance.mean_length == pytest.approx(1.9)
    assert acceptance.steps == 100
    raw = json.loads((DATA / "modelopt_profile.json").read_text())

    def refused(match, **changes):
        path = tmp_path / "m.json"
        path.write_text(json.dumps({**raw, **changes}))
        with pytest.raises(FormatError, match=match):
            formats.read(path)

    refused(
        "lists are swapped",
        conditional_accept_rates=raw["marginal_accept_rates"],
        marginal_accept_rates=raw["conditional_accept_rates"],
    )
    refused("mean_accept_length is 2.5", mean_accept_length=2.5)
    # Conditional rates under the marginal key, alone: the mean gives them away.
    refused(
        "conditional ones under the wrong key",
        conditional_accept_rates=None,
        marginal_accept_rates=[0.6, 0.5, 0.0],
    )
    refused("must include the bonus", acceptance_length_histogram={"0": 40, "1": 30, "2": 30})
    refused("num_speculative_tokens is 4", num_speculative_tokens=4)
    refused("a stub", measured=False)
    refused("not percent", conditional_accept_rates=[60, 50, 0])


def test_vllm_responses_add_up_and_are_checked_against_their_totals(tmp_path):
    found = formats.read(DATA / "vllm_requests.jsonl")
    # Histograms [4, 3, 2, 1] and [1, 1, 0, 2]: 14 steps.
    assert found.object.survival.tolist() == pytest.approx([9 / 14, 5 / 14, 3 / 14])
    assert not found.object.censored
    rows = [json.loads(line) for line in (DATA / "vllm_requests.jsonl").read_text().splitlines()]
    stats = rows[0]["metrics"]["speculative_decoding"]
    stats["num_draft_tokens"] -= 7
    path = tmp_path / "one.json"
    path.write_text(json.dumps(rows[0]))
    with pytest.raises(FormatError, match=r"23.3% of the drafts .* too high or too low"):
        formats.read(path)
    stats["num_spec_steps"] = 11
    path.write_text(json.dumps(rows[0]))
    with pytest.raises(FormatError, match="the row says 11"):
        formats.read(path)


def test_vllm_counters_are_summed_over_engines(tmp_path):
    found = formats.read(DATA / "vllm_metrics.txt")
    assert found.object.survival.tolist() == pytest.approx([0.8, 0.5, 0.2])
    assert found.object.steps == 100
    text = (DATA / "vllm_metrics.txt").read_text()
    old = tmp_path / "old.txt"
    old.write_text(text.replace("_total{", "{"))
    assert formats.read(old).object.survival.tolist() == found.object.survival.tolist()
    # Between two scrapes only the traffic in between counts.
    later = tmp_path / "later.txt"
    later.write_text(text.replace('engine="0",model_name="m"} 60.0', 'engine="0",model_name="m"} 160.0'))
    with pytest.raises(FormatError, match="a counter fell since"):
        formats.read(DATA / "vllm_metrics.txt", before=later)
    two = tmp_path / "two.txt"
    two.write_text(text.replace('engine="1",model_name="m"', 'engine="1",model_name="n"'))
    with pytest.raises(FormatError, match="counters of 2 models"):
        formats.read(two)
    assert formats.read(two, model="m").object.steps == 60
    trimmed = tmp_path / "trimmed.txt"
    trimmed.write_text(text.replace("180.0", "150.0"))
    with pytest.raises(FormatError, match=r"10.0% of the drafts"):
        formats.read(trimmed)
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(text.replace("90.0", "95.0"))
    with pytest.raises(FormatError, match="positions add up to 90 accepted tokens, the total says 95"):
        formats.read(wrong)


def test_a_dump_without_its_block_size_takes_that_of_its_confidences(tmp_path):
    dump = json.loads((DATA / "sglang_dump_cap_accept.json").read_text())
    bare = next(iter(_bare_dumps(dump)))
    path = tmp_path / "bare.json"
    path.write_text(json.dumps({"sampling": {}, "records": bare["records"]}))
    whole, cut = formats.read(DATA / "sglang_dump_cap_accept.json").object, formats.read(path).object
    assert cut.block_size == whole.block_size
    np.testing.assert_array_equal(cut.accepted, whole.accepted)


def _bare_dumps(value):
    if isinstance(value, dict) and "records" in value:
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _bare_dumps(inner)


def test_llamacpp_says_that_requests_of_a_slot_are_joined():
    assert any("joined" in note for note in formats.read(DATA / "llamacpp_steps.jsonl").notes)
