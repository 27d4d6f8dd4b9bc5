"""Workloads: laws of the generators, laws of scaling, and every public format with its malformed cousins."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsched.errors import WorkloadError
from specsched.workload import Workload, gamma_burst, load_workload, parse_arrivals, poisson

SHARED = Path(os.environ.get("SPECSCHED_SHARED", Path(__file__).parents[3] / "shared")) / "data"
shared = pytest.mark.skipif(not (SHARED / "arrivals").is_dir(), reason="the shared samples are not here")

rates = st.floats(1e-3, 1e4)
bursts = st.floats(0.0, 12.0)
seeds = st.integers(0, 2**40)


# -- generators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cv", [0.0, 0.3, 1.0, 2.5, 6.0])
def test_the_drawn_rate_and_burstiness_are_those_asked_for(cv: float) -> None:
    workload = gamma_burst(7.0, cv, requests=400_000, seed=3)
    # Five standard errors: cv / sqrt(n) for a mean of n gaps; for their CV the fourth moment of a gamma gap
    # gives sqrt((1.5 cv**2 + 0.5) / n).
    n = len(workload)
    assert workload.rate == pytest.approx(7.0, rel=5 * cv / n**0.5 + 1e-9)
    assert workload.burstiness == pytest.approx(cv, rel=5 * ((1.5 * cv * cv + 0.5) / n) ** 0.5, abs=1e-9)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_the_process_is_stationary_from_its_first_second(cv: float) -> None:
    # Expected arrivals in any span = rate * span. Drawing the first gap like the others would give too many
    # when bursty and too few when even: outside the bounds below.
    span, rate, runs = 1.0, 2.0, 3000
    counts = np.array([_count_before(rate, cv, span, seed) for seed in range(runs)])
    error = counts.std() / runs**0.5
    assert abs(counts.mean() - rate * span) < 5 * error + 1e-12


def _count_before(rate: float, cv: float, span: float, seed: int) -> int:
    return int((gamma_burst(rate, cv, requests=64, seed=seed).arrival_seconds <= span).sum())


@given(rates, bursts, seeds, st.integers(1, 300))
def test_arrivals_are_sorted_finite_and_as_many_as_asked(rate: float, cv: float, seed: int, n: int) -> None:
    workload = gamma_burst(rate, cv, requests=n, seed=seed)
    assert len(workload) == n
    assert np.isfinite(workload.arrival_seconds).all()
    assert (np.diff(workload.arrival_seconds) >= 0).all()
    assert workload.arrival_seconds[0] >= 0


@given(st.floats(0.5, 50.0), st.floats(0.0, 4.0), seeds, st.integers(1, 200))
def test_a_shorter_run_is_a_prefix_of_a_longer_one(rate: float, cv: float, seed: int, n: int) -> None:
    long = gamma_burst(rate, cv, requests=n + 100, seed=seed)
    short = gamma_burst(rate, cv, requests=n, seed=seed)
    np.testing.assert_array_equal(short.arrival_seconds, long.arrival_seconds[:n])
    np.testing.assert_array_equal(long.head(n).arrival_seconds, short.arrival_seconds)


def test_prefixes_agree_across_draw_blocks_and_by_seconds() -> None:
    long = gamma_burst(100.0, 2.0, requests=200_000, seed=5)
    np.testing.assert_array_equal(
        gamma_burst(100.0, 2.0, requests=70_000, seed=5).arrival_seconds, long.arrival_seconds[:70_000]
    )
    timed = gamma_burst(100.0, 2.0, seconds=1000.0, seed=5)
    np.testing.assert_array_equal(timed.arrival_seconds, long.arrival_seconds[: len(timed)])
    assert timed.arrival_seconds[-1] <= 1000.0 < long.arrival_seconds[len(timed)]


def test_one_seed_gives_one_workload_and_another_seed_another() -> None:
    again = poisson(3.0, requests=100, seed=1).arrival_seconds
    np.testing.assert_array_equal(poisson(3.0, requests=100, seed=1).arrival_seconds, again)
    assert not np.array_equal(poisson(3.0, requests=100, seed=2).arrival_seconds, again)


def test_gamma_with_cv_one_is_poisson_to_the_last_bit() -> None:
    np.testing.assert_array_equal(
        gamma_burst(3.0, 1.0, requests=99, seed=4).arrival_seconds,
        poisson(3.0, requests=99, seed=4).arrival_seconds,
    )


def test_other_rates_are_the_same_draws_dilated() -> None:
    one, four = poisson(1.0, requests=500, seed=9), poisson(4.0, requests=500, seed=9)
    np.testing.assert_array_equal(one.arrival_seconds, four.arrival_seconds * 4.0)


def test_a_known_draw_stays_what_it_was() -> None:
    # Results are promised to be the same bytes from run to run: a change of the draws must be seen.
    times = poisson(1.0, requests=3, seed=0).arrival_seconds
    np.testing.assert_allclose(times, [1.7559838224420297, 2.3701799951843325, 5.528261677902403], rtol=1e-12)


# -- scaling and cutting -------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 1e5), min_size=2, max_size=40), st.floats(1e-3, 1e4))
def test_scaling_sets_the_rate_and_keeps_burstiness_and_order(times: list[float], rate: float) -> None:
    arrival = np.sort(np.array(times))
    if arrival[-1] - arrival[0] < 1e-3:
        return
    workload = Workload("drawn", arrival)
    scaled = workload.scaled(rate)
    assert scaled.rate == pytest.approx(rate, rel=1e-9)
    assert scaled.burstiness == pytest.approx(workload.burstiness, rel=1e-6, abs=1e-6)
    assert (np.diff(scaled.arrival_seconds) >= 0).all()


def test_scaling_keeps_lengths_and_remembers_the_first_rate() -> None:
    workload = Workload("w", np.arange(4.0), prompt_tokens=np.arange(4), output_tokens=np.arange(1, 5))
    twice = workload.scaled(3.0).scaled(5.0)
    np.testing.assert_array_equal(twice.prompt_tokens, workload.prompt_tokens)
    assert twice.metadata["scaled_from_rate"] == 1.0


def test_between_is_half_open_and_starts_the_clock_again() -> None:
    workload = Workload("w", np.arange(10.0), domain=np.arange(10) % 2, domain_names=("a", "b"))
    part = workload.between(2.0, 5.0)
    np.testing.assert_array_equal(part.arrival_seconds, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(part.domain, [0, 1, 0])
    with pytest.raises(WorkloadError, match="no arrival between 20 s and 30 s"):
        workload.between(20.0, 30.0)


def test_lengths_can_be_given_as_one_number_or_one_each() -> None:
    workload = poisson(1.0, requests=3).with_lengths(prompt_tokens=512, output_tokens=[1, 2, 3])
    np.testing.assert_array_equal(workload.prompt_tokens, [512, 512, 512])
    np.testing.assert_array_equal(workload.output_tokens, [1, 2, 3])


def test_a_workload_without_a_span_has_no_rate() -> None:
    with pytest.raises(WorkloadError, match="span 0 s"):
        Workload("flat", np.zeros(3)).scaled(2.0)
    assert Workload("flat", np.zeros(3)).burstiness == 0.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arrival_seconds": []}, "holds no request"),
        ({"arrival_seconds": [0.0, np.nan]}, "arrival_seconds, row 1: nan"),
        ({"arrival_seconds": [-1.0]}, "arrival_seconds, row 0: -1.0 is before"),
        ({"arrival_seconds": [2.0, 3.0, 1.0]}, "arrival_seconds, row 2: 1.0 is earlier"),
        ({"arrival_seconds": ["a"]}, "flat array of numbers"),
        ({"arrival_seconds": [[0.0]]}, "flat array of numbers"),
        ({"arrival_seconds": [0.0, 1.0], "prompt_tokens": [1]}, "prompt_tokens has 1 rows"),
        ({"arrival_seconds": [0.0], "prompt_tokens": [-1]}, "prompt_tokens, row 0: -1"),
        ({"arrival_seconds": [0.0], "prompt_tokens": [1.5]}, "row 0: 1.5 is not a whole"),
        ({"arrival_seconds": [0.0], "prompt_tokens": [np.inf]}, "row 0: inf is not a whole"),
        ({"arrival_seconds": [0.0, 0.0], "output_tokens": [3, 0]}, "output_tokens, row 1: 0"),
        ({"arrival_seconds": [0.0], "domain": [1], "domain_names": ("a",)}, "domain, row 0: 1"),
    ],
)
def test_what_cannot_be_is_refused_by_row_and_column(fields: dict, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Workload("bad", **fields)


# -- the command line's spelling -----------------------------------------------------------------------------


def test_parse_arrivals_knows_every_spelling(tmp_path: Path) -> None:
    assert parse_arrivals("closed") is None
    drawn = parse_arrivals("poisson:2.5", requests=50, seed=1)
    wanted = poisson(2.5, requests=50, seed=1).scaled(2.5)
    np.testing.assert_array_equal(drawn.arrival_seconds, wanted.arrival_seconds)
    burst = parse_arrivals("gamma:2.5:3", seconds=100.0, seed=1)
    np.testing.assert_array_equal(
        burst.arrival_seconds, gamma_burst(2.5, 3.0, seconds=100.0, seed=1).arrival_seconds
    )
    file = tmp_path / "a.csv"
    file.write_text("arrival_seconds\n0\n1.5\n4\n")
    assert len(parse_arrivals(str(file))) == 3
    assert len(parse_arrivals(str(file), requests=2)) == 3, "a file is read whole"
    assert len(parse_arrivals(str(file), seconds=2.0)) == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("closed:3", "takes no parameter"),
        ("poisson", "poisson:RATE"),
        ("poisson:", "poisson:RATE"),
        ("poisson:fast", "poisson:RATE"),
        ("poisson:1:2", "poisson:RATE"),
        ("gamma:3", "gamma:RATE:CV"),
        ("poisson:-1", "rate -1.0 is not a positive"),
        ("poisson:nan", "not a positive"),
        ("poisson:inf", "not a positive"),
        ("gamma:1:-1", "burstiness"),
        ("gamma:1:nan", "burstiness"),
        ("posson:3", "no generator of that name"),
        ("nowhere.csv", "no such file"),
    ],
)
def test_bad_arrivals_say_what_would_be_right(spec: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        parse_arrivals(spec, requests=10)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"requests": 3, "seconds": 1.0},
        {"requests": 0},
        {"seconds": -1.0},
        {"seconds": 1e12},
        {"seconds": 1e-9},
    ],
)
def test_a_generator_needs_one_sane_size(arguments: dict) -> None:
    with pytest.raises(WorkloadError):
        poisson(5.0, **arguments)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0", 2**63])
def test_seeds_are_whole_numbers(seed: object) -> None:
    with pytest.raises(WorkloadError, match="seed"):
        poisson(1.0, requests=1, seed=seed)  # type: ignore[arg-type]


# -- public formats ------------------------------------------------------------------------------------------

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
120,GPT-4,417,276,693,API log
"""
MOONCAKE = "".join(
    json.dumps({"timestamp": t, "input_length": p, "output_length": o, "hash_ids": [1, 2]}) + "\n"
    for t, p, o in ((0, 6758, 500), (0, 7322, 490), (3052, 7237, 794))
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,3\n1.5,11,4\n"
PLAIN = "domain,output_tokens,arrival_seconds,prompt_tokens\nmath,3,0.25,10\nchat,4,0.5,20\nmath,5,0.5,30\n"


def written(tmp_path: Path, text: str, name: str = "arrivals.csv") -> Path:
    file = tmp_path / name
    if name.endswith(".gz"):
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "name", "format_name", "arrival", "prompt", "output"),
    [
        (AZURE_2023, "a.csv", "Azure", [0.0, 4.314579, 4.541877], [374, 396, 879], [44, 109, 55]),
        (AZURE_2024, "a.csv", "Azure", [0.0, 0.007405, 0.99007], [2162, 2399, 76], [5, 6, 15]),
        (BURSTGPT, "a.csv", "BurstGPT", [5.0, 45.0, 120.0], [472, 1087, 417], [18, 230, 276]),
        (MOONCAKE, "a.jsonl", "Mooncake", [0.0, 0.0, 3.052], [6758, 7322, 7237], [500, 490, 794]),
        (MOONCAKE, "a.jsonl.gz", "Mooncake", [0.0, 0.0, 3.052], [6758, 7322, 7237], [500, 490, 794]),
        (VIDUR, "a.csv", "Vidur", [0.5, 1.5], [10, 11], [3, 4]),
        (PLAIN, "a.csv", "plain", [0.25, 0.5, 0.5], [10, 20, 30], [3, 4, 5]),
        (PLAIN, "a.csv.gz", "plain", [0.25, 0.5, 0.5], [10, 20, 30], [3, 4, 5]),
        ("arrival_s,prompt_tokens,output_tokens\r\n0.0, 7 ,8\r\n", "a.csv", "plain", [0.0], [7], [8]),
        ('\ufeff"arrival_seconds"\n1\n2\n', "a.csv", "plain", [1.0, 2.0], None, None),
        ('{"arrival_seconds": 1, "output_tokens": 5}\n\n', "a.json", "plain", [1.0], None, [5]),
    ],
)
def test_each_format_is_recognised_by_its_columns(
    tmp_path: Path, text: str, name: str, format_name: str, arrival: list, prompt: list, output: list
) -> None:
    workload = load_workload(written(tmp_path, text, name))
    assert workload.metadata["format"].startswith(format_name)
    np.testing.assert_allclose(workload.arrival_seconds, arrival, atol=1e-9)
    for values, expected in ((workload.prompt_tokens, prompt), (workload.output_tokens, output)):
        assert (values is None) == (expected is None)
        if expected is not None:
            np.testing.assert_array_equal(values, expected)


def test_domains_are_read_by_name(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, PLAIN))
    assert [workload.domain_names[code] for code in workload.domain] == ["math", "chat", "math"]
    text = '{"arrival_seconds": 1, "domain": "chat"}\n{"arrival_seconds": 2, "domain": "code"}\n'
    workload = load_workload(written(tmp_path, text, "a.jsonl"))
    assert [workload.domain_names[code] for code in workload.domain] == ["chat", "code"]


def test_failed_requests_are_dropped_and_counted(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, BURSTGPT))
    assert workload.metadata["dropped"] == 1
    assert "1 of 4 requests have no output token" in workload.warnings[0]


def test_rows_out_of_order_are_sorted_with_their_lengths_and_said_so(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, "arrival_seconds,prompt_tokens\n3,30\n1,10\n2,20\n"))
    np.testing.assert_array_equal(workload.prompt_tokens, [10, 20, 30])
    assert "were sorted" in workload.warnings[0]


PLAIN_HEADER = "arrival_seconds,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "a.csv", "is empty"),
        (PLAIN_HEADER, "a.csv", "holds no request"),
        (PLAIN_HEADER + "0,1,0\n", "a.csv", "1 rows read"),
        ("when,what\n1,2\n", "a.csv", "no known format has the columns when, what"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "a.csv", "no known format"),
        (PLAIN_HEADER + "0,1,2\n1,x,2\n", "a.csv", r"row 2: prompt_tokens 'x' is not a number"),
        (PLAIN_HEADER + "0,1,2\n1,,2\n", "a.csv", r"row 2: prompt_tokens '' is not a number"),
        (PLAIN_HEADER + "0,1,2\n1,1_0,2\n", "a.csv", r"row 2: prompt_tokens '1_0' is not a number"),
        (PLAIN_HEADER + "0,1,2\n1,1.5,2\n", "a.csv", "row 2: prompt_tokens 1.5 is not a whole"),
        (PLAIN_HEADER + "0,1,2\n1,1e99,2\n", "a.csv", "row 2: prompt_tokens 1e.99 is not a token count"),
        (PLAIN_HEADER + "0,1,2\nnan,1,2\n", "a.csv", "row 2: arrival_seconds nan"),
        (PLAIN_HEADER + "0,1,2\ninf,1,2\n", "a.csv", "row 2: arrival_seconds inf"),
        (PLAIN_HEADER + "0,1,2\n-3,1,2\n", "a.csv", "row 2: arrival_seconds -3.0 is negative"),
        (PLAIN_HEADER + "0,-1,2\n", "a.csv", "row 1: prompt_tokens -1 is negative"),
        (PLAIN_HEADER + "0,1\n", "a.csv", "every row needs the header's columns"),
        (AZURE_2023 + "yesterday,1,2\n", "a.csv", "row 4: TIMESTAMP 'yesterday' is not a date"),
        (AZURE_2023 + "2024-05-10 00:00:00+00:00,1,2\n", "a.csv", "row 4: TIMESTAMP .* all without"),
        (MOONCAKE + '{"timestamp": 1}\n', "a.jsonl", "row 4: input_length"),
        (
            MOONCAKE + '{"timestamp": "a", "input_length": 1, "output_length": 1}\n',
            "a.jsonl",
            "row 4: timestamp 'a'",
        ),
        (MOONCAKE + '{"timestamp": 1, "input_le', "a.jsonl", "row 4: .*cut short"),
        (MOONCAKE + "[1]\n", "a.jsonl", "row 4: is a list"),
        ("{\n", "a.jsonl", "row 1: is not one JSON object per line"),
        ("not a parquet file", "a.parquet", "not a readable Parquet"),
        ("not gzip", "a.csv.zz", "no known format"),
    ],
)
def test_malformed_files_are_refused_by_row_and_column(
    tmp_path: Path, text: str, name: str, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        load_workload(written(tmp_path, text, name))


def test_files_that_are_no_text_or_cut_short_are_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.csv.gz"
    rows = "".join(f"{i}\n" for i in range(20_000))
    cut.write_bytes(gzip.compress(("arrival_seconds\n" + rows).encode())[:-2000])
    for file, content in (
        (cut, None),
        (tmp_path / "b.csv", b"\xff\xfe\x00,\n"),
        (tmp_path / "c.csv.gz", b"plain"),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(WorkloadError, match=file.name.split(".")[0]):
            load_workload(file)
    with pytest.raises(WorkloadError, match="is a folder"):
        load_workload(tmp_path)


def test_many_blocks_are_joined_and_rows_counted_across_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specsched.workload.blocks._BLOCK_BYTES", 256)
    rows = [f"{i / 10},{i},{i + 1},{'ab'[i % 2]}" for i in range(200)]
    header = "arrival_seconds,prompt_tokens,output_tokens,domain\n"
    workload = load_workload(written(tmp_path, header + "\n".join(rows) + "\n"))
    np.testing.assert_array_equal(workload.prompt_tokens, np.arange(200))
    assert [workload.domain_names[code] for code in workload.domain[:3]] == ["a", "b", "a"]
    rows[150] = "15,150,oops,a"
    with pytest.raises(WorkloadError, match="row 151: output_tokens 'oops'"):
        load_workload(written(tmp_path, header + "\n".join(rows) + "\n"))
    lines = [json.dumps({"timestamp": i, "input_length": i, "output_length": i + 1}) for i in range(200)]
    workload = load_workload(written(tmp_path, "\n".join(lines), "a.jsonl"))
    np.testing.assert_array_equal(workload.output_tokens, np.arange(200) + 1)
    lines[150] = '{"timestamp": 3}'
    with pytest.raises(WorkloadError, match="row 151: input_length"):
        load_workload(written(tmp_path, "\n".join(lines), "a.jsonl"))


# -- ServeGen client windows ---------------------------------------------------------------------------------

SERVEGEN = """client,t_s,rate_rps,cv,family,p1,p2
0,600,0.5,1.0,Gamma,1.0,2.0
1,600,0.25,3.0,Weibull,0.4,1.0
1,1200,0.1,20.0,Weibull,0.01,1.0
2,1200,0.1,900.0,Gamma,0.000001,1.0
"""


def test_client_windows_keep_their_recorded_counts(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, SERVEGEN), seed=1)
    first, second = workload.between(0, 600), workload.between(600, 1200)
    assert len(first) == 450  # 0.5 * 600 + 0.25 * 600
    assert len(second) == 120
    assert workload.metadata["clients"] == 3
    assert workload.prompt_tokens is None
    np.testing.assert_array_equal(
        load_workload(written(tmp_path, SERVEGEN), seed=1).arrival_seconds, workload.arrival_seconds
    )
    assert not np.array_equal(
        load_workload(written(tmp_path, SERVEGEN), seed=2).arrival_seconds, workload.arrival_seconds
    )
    np.testing.assert_array_equal(
        load_workload(written(tmp_path, SERVEGEN), requests=10, seed=1).arrival_seconds,
        workload.arrival_seconds[:10],
    )


def test_client_windows_have_the_burstiness_of_their_family(tmp_path: Path) -> None:
    header = "client,t_s,rate_rps,cv,family,p1,p2\n"
    for family, shape, cv in (("Gamma", 0.25, 2.0), ("Weibull", 2.0, 0.5227), ("Gamma", 1.0, 1.0)):
        text = header + f"0,0,100,{cv},{family},{shape},1\n"
        assert load_workload(written(tmp_path, text)).burstiness == pytest.approx(cv, rel=0.05)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,0,x,1,Gamma,1,1", "row 1: rate_rps 'x'"),
        ("0,0,1,1,Gamma,0,1", "row 1: p1 '0'"),
        ("0,0,1,1,Pareto,1,1", "row 1: family 'Pareto'"),
        ("0,0", "row 1: rate_rps None"),
        ("0,0,0,1,Gamma,1,1", "rate of 0"),
        ("", "no client window"),
    ],
)
def test_malformed_client_windows_are_refused(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load_workload(written(tmp_path, "client,t_s,rate_rps,cv,family,p1,p2\n" + row + "\n"))


# -- the samples, where they are -----------------------------------------------------------------------------


@shared
@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("azure2023_code", 8819),
        ("azure2023_conv", 19366),
        ("mooncake_conversation", 12031),
        ("mooncake_synthetic", 3993),
    ],
)
def test_the_shared_arrivals_load_whole(name: str, requests: int) -> None:
    workload = load_workload(SHARED / "arrivals" / f"{name}.csv")
    assert len(workload) == requests == workload.metadata["rows"]
    assert workload.scaled(2 * workload.rate).burstiness == pytest.approx(workload.burstiness)
    assert workload.prompt_tokens is not None
    assert workload.output_tokens is not None


@shared
def test_the_shared_client_windows_draw_a_day() -> None:
    workload = load_workload(SHARED / "servegen" / "deepseek-r1_clients.csv.gz", requests=50_000)
    assert len(workload) == 50_000
    assert workload.metadata["windows"] == 3111


@settings(max_examples=20)
@given(st.integers(1, 50), st.integers(1, 9), seeds)
def test_passes_use_every_item_equally_often(passes: int, items: int, seed: int) -> None:
    from specsched.randomness import shuffled_passes

    order = shuffled_passes(passes * items, items, seed, stream=7)
    for one in order.reshape(passes, items):
        assert sorted(one) == list(range(items))
    np.testing.assert_array_equal(shuffled_passes(passes * items - 1, items, seed, stream=7), order[:-1])


def test_streams_are_apart() -> None:
    from specsched.randomness import generator, hashed, shuffled_passes

    index = np.arange(1000)
    assert len(np.unique(np.concatenate([hashed(0, s, index) for s in range(8)]))) == 8000
    draws = {generator(0, stream, block).random() for stream in range(1, 7) for block in range(4)}
    assert len(draws) == 24
    assert not np.array_equal(shuffled_passes(100, 100, 0, stream=4), shuffled_passes(100, 100, 0, stream=3))
