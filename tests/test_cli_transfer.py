"""`kvarray transfer`: what it prints, what it refuses, the transfer scenario, and its pictures."""

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvarray import PDScheduler, TransferEngine, processor_sharing_queue, round_robin_timeline, serial_timeline
from kvarray.cli import main


def ask(capsys, *arguments):
    """The JSON answer of `kvarray transfer`."""
    assert main(["transfer", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks", "0"], "--blocks must be 1 or more: got 0"),
        (["--streams", "0"], "num_streams must be 1 or more: got 0"),
        (["--bandwidth", "0GB/s"], "bytes_per_second must be more than 0"),
        (["--bandwidth", "-1GB/s"], "--bandwidth"),
        (["--bandwidth", "25GB"], "a rate must have a unit out of"),
        (["--bandwidth", "1GB/s,2GB/s", "--streams", "3"], "must have one item for each of 3 streams"),
        (["--bandwidth", "1GB/s", "--link", "net-25g"], "not allowed with argument"),
        (["--link", "carrier-pigeon"], "--link: invalid choice"),
        (["--fail", "1"], "a failure must be STREAM@TIME, such as 1@2ms: got '1'"),
        (["--fail", "2@1ms"], "--fail must name one of 2 streams, 0 to 1: got 2"),
        (["--fail", "0@0s,1@0s"], "all streams have failed at 0 s, with 64 blocks to go"),
        (["--fail", "0@1ms", "--overlap", "0.5"], "overlap_efficiency must be 1 where streams may fail"),
        (["--overlap", "1.5"], "overlap_efficiency must be 1 or less: got 1.5"),
        (["--schedule", "layered", "--group", "0"], "--group must be 1 or more: got 0"),
        (["--schedule", "chunked", "--chunk", "0"], "--chunk must be 1 or more: got 0"),
        (["--schedule", "chunked", "--chunk", "best"], "--chunk best needs --prefill-model"),
        (["--schedule", "layered", "--layers", "0"], "--layers must be 1 or more: got 0"),
        (["--prefill", "1s", "--prefill-model", "qwq-32b-2xh20"], "not allowed with argument"),
        (["--sweep", "colour=1:2"], "a sweep must be one of bandwidth, latency, alpha, overlap = LOW:HIGH"),
        (["--sweep", "bandwidth=2GB/s"], "a sweep must be one of"),
        (["--sweep", "bandwidth=2GB/s:1GB/s"], "a sweep must go from a lower to a higher value"),
        (["--sweep", "bandwidth=0GB/s:1GB/s"], "bytes_per_second must be more than 0"),
        (["--sweep", "alpha=1us:9us", "--alpha", "1us"], "--sweep alpha and --alpha exclude each other"),
        (["--sweep", "overlap=0:2"], "overlap_efficiency must be 1 or less"),
        (
            ["--sweep", "alpha=1us:9us", "--schedule", "layered", "--group", "best"],
            "best sizes are of one schedule: give a number in a --sweep",
        ),
        (["--fail", "\u00b2@1"], "a failure must be STREAM@TIME, such as 1@2ms: got"),
        (["--fail", "9" * 5000 + "@1"], "a failure must be STREAM@TIME"),
        (["--overlap", "half"], "an overlap efficiency must be a number from 0 to 1: got 'half'"),
        (["--sweep", "overlap=0:inf"], "an overlap efficiency must be a number from 0 to 1: got 'inf'"),
        (["--blocks", "99999999999"], "--blocks must be 1000000 or less: got 99999999999"),
        (["--blocks", "200k", "--sweep", "alpha=1us:9us"], "--blocks must be 100000 or less with --sweep: got 200000"),
        (
            ["--blocks", "20k", "--schedule", "chunked", "--chunk", "best", "--prefill-model", "qwq-32b-2xh20"],
            "--blocks must be 10000 or less with --chunk best",
        ),
        (["--streams", "1G"], "num_streams must be less than 65537: got 1000000000"),
        (["--schedule", "layered", "--layers", "1e18"], "--layers must be 10000 or less"),
        (["--schedule", "layered", "--group", "1e18"], "--group must be 10000 or less"),
        (["--schedule", "chunked", "--chunk", "1e18"], "--chunk must be 1000000 or less"),
        (["--prefill-model", "qwq-32b-2xh20", "--block-tokens", "1e18"], "--block-tokens must be 1000000 or less"),
        (["--compare", "--plot", "gantt.png"], "--plot draws one schedule or a --sweep"),
        (["--json", "--csv"], "not allowed with argument"),
    ],
)
def test_refuses(capsys, arguments, message):
    assert main(["transfer", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "80"], "--layers needs --schedule layered, or --compare: got pipelined"),
        (["--layers", "0"], "--layers needs --schedule layered"),
        (["--schedule", "chunked", "--group", "2"], "--group needs --schedule layered, or --compare: got chunked"),
        (["--schedule", "layered", "--chunk", "0"], "--chunk needs --schedule chunked, or --compare: got layered"),
        (
            ["--schedule", "sequential", "--overlap", "0.5"],
            "--overlap needs --schedule pipelined or layered or chunked",
        ),
        (["--schedule", "sequential", "--sweep", "overlap=0:1"], "--sweep overlap needs --schedule pipelined or"),
        (["--compare", "--schedule", "layered"], "--schedule and --compare exclude each other"),
        (["--compare", "--chunk", "8"], "--chunk needs --prefill or --prefill-model"),
        (["--block-tokens", "32"], "--block-tokens needs --prefill-model: nothing else counts tokens"),
        (["--fragment", "4KiB"], "--fragment needs --alpha: fragments that cost nothing each make no difference"),
        (["--fragment", "4KiB", "--link", "net-25g"], "--fragment needs --alpha"),
    ],
)
def test_refuses_flags_that_nothing_reads(capsys, arguments, message):
    assert main(["transfer", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--compare", "--layers", "4", "--group", "2", "--overlap", "0.5"],
        ["--compare", "--prefill", "1s", "--chunk", "4"],
        ["--fragment", "4KiB", "--alpha", "1us"],
        ["--fragment", "4KiB", "--link", "dram-pcie5-dma"],
        ["--fragment", "4KiB", "--sweep", "alpha=1us:9us"],
        ["--prefill-model", "qwq-32b-2xh20", "--block-tokens", "32"],
    ],
)
def test_flags_that_are_read_are_taken(capsys, arguments):
    assert main(["transfer", *arguments]) == 0
    assert capsys.readouterr().err == ""


def test_refuses_a_picture_of_no_known_kind(capsys):
    pytest.importorskip("matplotlib")
    assert main(["transfer", "--plot", "gantt.bmpx"]) == 2
    assert "a plot's file must end in one of" in capsys.readouterr().err


def test_the_transfer_scenario(capsys):
    rows = {row["schedule"]: row for row in ask(capsys, "--compare")["schedules"]}
    assert round(rows["sequential, 1 stream"]["ttft_s"] * 1e3, 2) == 6.68
    assert round(rows["sequential, 2 streams"]["ttft_s"] * 1e3, 3) == 5.342
    assert round(rows["pipelined"]["ttft_s"] * 1e3, 2) == 4.04
    assert round(rows["pipelined"]["makespan_s"] * 1e3, 2) == 256.04
    assert round(rows["pipelined"]["overlap_gain_s"] * 1e3, 2) == 2.64


def test_the_table_shows_the_first_pieces_and_the_last(capsys):
    assert main(["transfer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "64 blocks of 1 MiB, 64 MiB; decode 4 ms"
    assert lines[2].split() == ["pipelined", "4.042", "ms", "41.94", "us", "256", "ms", "0", "s"]
    assert lines[-1] == "51 pieces before the last are left out; --csv prints all"


def test_every_piece_is_a_row_of_csv(capsys):
    assert main(["transfer", "--blocks", "5", "--schedule", "sequential", "--streams", "1", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["piece"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert float(rows[-1]["arrive_s"]) == pytest.approx(5 * 2**20 / 25e9)


def test_streams_that_fail_are_reported(capsys):
    answer = ask(capsys, "--fail", "1@0.5ms")
    assert answer["schedules"][0]["resent"] == sum(piece["attempts"] > 1 for piece in answer["pieces"]) > 0
    assert main(["transfer", "--fail", "1@0.5ms"]) == 0
    assert "resent" in capsys.readouterr().out


def test_streams_that_fail_side_by_side(capsys):
    rows = ask(capsys, "--fail", "0@0.5ms", "--compare")["schedules"]
    assert [row["schedule"] for row in rows] == ["sequential, 2 streams", "pipelined", "layered, 1 at once"]
    assert all(row["resent"] > 0 for row in rows)


def test_a_named_link_and_a_named_model(capsys):
    answer = ask(
        capsys,
        "--link", "net-200g", "--streams", "4", "--prefill-model", "llama-3.1-8b-h100", "--blocks", "512",
        "--block-bytes", "2MiB", "--compare",
    )  # fmt: skip
    ttft = {row["schedule"]: row["ttft_s"] for row in answer["schedules"]}
    assert ttft["layered, 1 at once"] < ttft["chunked by 8"] < ttft["sequential, 1 stream"]


def test_the_best_sizes_are_no_worse_than_others(capsys):
    flags = ["--alpha", "50us", "--prefill-model", "qwq-32b-2xh20", "--blocks", "64", "--streams", "1"]
    for name, flag in (("layered", "--group"), ("chunked", "--chunk")):
        best = ask(capsys, *flags, "--schedule", name, flag, "best")["schedules"][0]
        for size in (1, 8, 64):
            other = ask(capsys, *flags, "--schedule", name, flag, size)["schedules"][0]
            assert best["ttft_s"] <= other["ttft_s"] * (1 + 1e-12)


@pytest.mark.parametrize("sweep", ["bandwidth=10GB/s:400GB/s", "latency=0:1ms", "alpha=1us:100us", "overlap=0:1"])
def test_sweeps(capsys, sweep):
    answer = ask(capsys, "--compare", "--sweep", sweep)
    assert set(answer["ttft_s"]) == {
        "sequential, 1 stream", "sequential, 2 streams", "pipelined", "layered, 1 at once",
    }  # fmt: skip
    assert all(len(ttft) == len(answer["values"]) == 200 for ttft in answer["ttft_s"].values())
    falls = np.diff(answer["ttft_s"]["pipelined"])
    assert (falls < 0).all() if answer["sweep"] in ("bandwidth", "overlap") else (falls > 0).all()


def test_a_sweep_is_the_same_as_single_schedules(capsys):
    answer = ask(capsys, "--sweep", "bandwidth=10GB/s:400GB/s")
    for i in (0, 100, 199):
        scheduler = PDScheduler(TransferEngine(answer["values"][i], num_streams=2))
        alone = scheduler.pipelined(np.full(64, 2**20), decode_s=4e-3)
        assert answer["ttft_s"]["pipelined"][i] == pytest.approx(float(alone.ttft_s))


def test_a_sweep_as_text_and_csv(capsys):
    assert main(["transfer", "--sweep", "alpha=1us:100us"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["cost", "of", "a", "fragment,", "us", "pipelined"]
    assert main(["transfer", "--sweep", "alpha=1us:100us", "--csv"]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 200


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fail", "1@0.5ms", "--decode", "30us"],
        ["--schedule", "layered", "--prefill", "5ms"],
        ["--blocks", "1", "--block-bytes", "0", "--decode", "0"],
        ["--compare", "--sweep", "bandwidth=10GB/s:400GB/s"],
        ["--sweep", "overlap=0:1"],
    ],
)
def test_pictures(tmp_path, capsys, arguments):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in paths:
        assert main(["transfer", *arguments, "--plot", str(path)]) == 0
    assert paths[0].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert paths[0].read_bytes() == paths[1].read_bytes()


def layered(capsys, *arguments):
    return ask(capsys, "--schedule", "layered", "--decode", "0", *arguments)


def test_the_bandwidth_from_which_layers_hide(capsys):
    # 64 MiB in 80 layers behind 80 ms: 1 ms each, on one stream or on each of four
    one = 64 * 2**20 / 80 / 1e-3
    assert layered(capsys, "--prefill", "80ms", "--streams", 1)["overlap_bytes_per_second"] == pytest.approx(one)
    assert layered(capsys, "--prefill", "80ms", "--streams", 4)["overlap_bytes_per_second"] == pytest.approx(4 * one)
    assert main(["transfer", "--prefill", "80ms", "--compare"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "all layers but the last have arrived when prefill ends from 1.678 GB/s on, all streams together"
    assert main(["transfer", "--prefill", "80ms", "--compare", "--group", "8"]) == 0
    assert "all groups of 8 layers but the last have arrived" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--prefill", "80ms"],
        ["--schedule", "layered"],
        ["--schedule", "layered", "--prefill", "80ms", "--alpha", "2ms", "--streams", "1"],
        ["--schedule", "layered", "--prefill", "80ms", "--latency", "2ms"],
        ["--schedule", "layered", "--prefill", "80ms", "--layers", "1"],
        ["--schedule", "layered", "--prefill", "80ms", "--group", "80"],
        ["--schedule", "layered", "--prefill", "80ms", "--overlap", "0.5"],
        ["--schedule", "layered", "--prefill", "80ms", "--fail", "1@0.5ms"],
        ["--schedule", "layered", "--prefill", "80ms", "--bandwidth", "1GB/s,2GB/s", "--assignment", "least_loaded"],
    ],
)
def test_layers_that_hide_at_no_bandwidth_or_not_by_it_alone(capsys, arguments):
    assert ask(capsys, *arguments)["overlap_bytes_per_second"] is None
    assert main(["transfer", *arguments]) == 0
    assert "when prefill ends" not in capsys.readouterr().out


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shares=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    num_layers=st.integers(2, 9),
    group=st.integers(1, 4),
    overheads=st.sampled_from([[], ["--latency", "0.7ms"], ["--alpha", "0.3ms", "--fragment", "16MiB"]]),
)
@example(shares=[1, 1, 1, 1], num_layers=4, group=1, overheads=[])
@example(shares=[1, 1], num_layers=4, group=1, overheads=["--latency", "0.7ms"])
def test_layers_do_hide_from_that_bandwidth_on(capsys, shares, num_layers, group, overheads):
    flags = ["--prefill", "20ms", "--layers", num_layers, "--group", group, *overheads]

    def bandwidths(total):
        rates = [f"{total * share / sum(shares)!r}B/s" for share in shares]
        return ["--streams", len(shares), "--bandwidth", ",".join(rates)]

    needed = layered(capsys, *flags, *bandwidths(1e9))["overlap_bytes_per_second"]
    if needed is None:
        return
    for scale, hides in ((1 + 1e-9, True), (1 - 1e-6, False)):
        pieces = layered(capsys, *flags, *bandwidths(needed * scale))["pieces"]
        late = [piece for piece in pieces[:-1] if piece["arrive_s"] > pieces[-1]["computed_s"] * (1 + 1e-12)]
        assert (not late) == hides


@pytest.mark.parametrize(
    "timeline",
    [
        serial_timeline([]),
        round_robin_timeline([1.0, 2.0, 3.0], 2),
        processor_sharing_queue([0.0, 1.0], [2.0, 2.0]),
    ],
)
def test_timelines_are_drawn(tmp_path, timeline):
    pytest.importorskip("matplotlib")
    from kvarray.plot import plot_timeline, save_figure

    save_figure(plot_timeline(timeline, title="a title"), tmp_path / "gantt.svg")
    assert "a title" in (tmp_path / "gantt.svg").read_text()
    with pytest.raises(ValueError, match="timeline must be of one world"):
        plot_timeline(serial_timeline([[1.0], [2.0]]))


def test_a_picture_is_of_one_world():
    pytest.importorskip("matplotlib")
    from kvarray.plot import plot_schedule

    schedule = PDScheduler(TransferEngine([[1.0], [2.0]])).pipelined([1.0], decode_s=1.0)
    with pytest.raises(ValueError, match=r"schedule must be of one world: got leading axes \(2,\)"):
        plot_schedule(schedule)
