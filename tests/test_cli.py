"""The command: what it prints, what it returns, and what it says of bad input."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.ask.choices import CHOICES, LOOPS, OWNED
from everybyte.command import FIRST, STATUSES, main

SMALL = ["gpt2", "--batch", "1", "--sequence", "8"]
COUNTED = {"budget": [], "dry-run": ["operations", "timeline", "owners", "alive"]}
KEYS = ["witness", "model", "setup", "parts", "phases", "peak", "peak_at"]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from everybyte.command import main
sys.exit(main(sys.argv[1:]))
"""


def said(capsys, *arguments):
    """What the command prints, where it succeeds and has nothing to complain of."""
    assert main(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def no_fractions(value):
    return json.loads(value, parse_float=lambda text: pytest.fail(f"{text} is no whole number"))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("command", ["budget", "dry-run"])
def test_a_witness_as_json(capsys, command):
    found = no_fractions(
        said(capsys, command, *SMALL, "--json")
        .replace('"dropout": 0.0', '"dropout": 0')
        .replace('"routing": 1.0', '"routing": 1')
    )
    assert list(found) == [*KEYS, *COUNTED[command]]
    assert found["witness"] == {"budget": "predict"}.get(command, "dry run")
    assert found["model"] == {"name": "gpt2", "parameters": 124439808}
    assert found["setup"] == eb.Setup(batch=1, sequence=8).as_dict()
    for group in ("parts", "phases"):
        assert all(type(v) is int for v in found[group].values())
    assert sum(found["parts"].values()) == found["peak"] > 0
    assert found["phases"]["rest"] == 12 * 124439808
    witness = {"budget": eb.budget, "dry-run": eb.dry_run}[command]
    assert found == witness(eb.model("gpt2"), eb.Setup(batch=1, sequence=8)).as_dict()


def test_the_json_of_a_dry_run_has_its_timeline_and_its_owners(capsys):
    found = json.loads(said(capsys, "dry-run", *SMALL, "--json"))
    live = [sum(line) for line in zip(*found["timeline"].values(), strict=True)]
    assert len(live) == len(found["operations"]) and max(live) == found["peak"]
    assert found["operations"][live.index(found["peak"])][1] in found["peak_at"]
    assert sum(row["bytes"] for row in found["owners"]) == found["peak"]
    assert list(found["owners"][0]) == ["owner", "part", "tensors", "bytes"]


def test_a_gpu_by_its_size(capsys):
    by_size = json.loads(said(capsys, "fit", "gpt2", "--memory", "24GiB", "--json"))
    assert by_size["gpu"] == {"name": "GPU of 24.00 GiB", "memory": 24 * 2**30} and by_size["fits"]
    for options, words in (
        (["--memory", "24"], "--memory: value: '24'"),
        ([], "fit: --gpu and --memory; allowed: one of them"),
        (["--gpu", "t4", "--memory", "24GiB"], "fit: --gpu and --memory; allowed: one of them"),
        (["--gpu", "t4", "--keep-driver", "500"], "--keep-driver: value: '500' is not a number followed by a unit"),
        (["--memory", "24GiB", "--plan"], "Gpu.bandwidth: 0"),
        (
            ["--gpu", "t4", "--sharding", "fsdp", "--gpus", "2"],
            "Setup.sharding: 'fsdp' is unknown; did you mean 'zero3'?",
        ),
    ):
        assert main(["fit", "gpt2", *options]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "value", "fits"), [(["--batch", "64"], 64, False), (["--batch=8"], 8, True), (["--bat", "2"], 2, True)]
)
def test_a_batch_that_is_written_is_answered(capsys, written, value, fits):
    asked = ["fit", "gpt2", "--gpu", "rtx-4090", "--precision", "bf16-mixed"]
    assert "as asked" not in said(capsys, *asked) and "asked" not in json.loads(said(capsys, *asked, "--json"))
    assert main([*asked, *written]) == (0 if fits else 1)
    assert capsys.readouterr().out.endswith(f"\nbatch {value}, as asked, {'fits' if fits else 'does not fit'}\n")
    assert main([*asked, *written, "--json"]) == (0 if fits else 1)
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["asked"] == {"value": value, "fits": fits}
    assert "as asked" not in said(capsys, *asked, "--vary", "sequence", "--batch", "1")
    assert "as asked" not in said(
        capsys, *asked, "--vary", "gpus", "--sharding", "zero3"
    )  # --gpu is no beginning of it


@pytest.mark.parametrize("command", ["budget", "dry-run"])
def test_a_witness_as_a_table(capsys, command):
    found = json.loads(said(capsys, command, *SMALL, "--json"))
    *lines, ran = said(capsys, command, *SMALL).splitlines()
    rows = {line.split("  ")[0]: line for line in lines[2:]}
    assert ran.startswith(f"for batch {found['setup']['batch']}, sequence {found['setup']['sequence']}, ")
    assert lines[0].split() == [*found["witness"].split(), "bytes"]
    peak = f"peak, at {found['peak_at']}"
    assert list(rows) == [*found["parts"], *found["phases"], peak]
    for name, value in (found["parts"] | found["phases"] | {peak: found["peak"]}).items():
        assert f" {value:,} " in rows[name]


def test_compare(capsys):
    found = json.loads(said(capsys, "compare", *SMALL, "--json"))
    assert list(found) == ["witnesses", "differences", "agree"]
    assert found["agree"] is True and set(found["differences"].values()) == {0}
    assert [list(w) for w in found["witnesses"]] == [KEYS, [*KEYS, *COUNTED["dry-run"]]]
    assert [w["witness"] for w in found["witnesses"]] == ["predict", "dry run"]
    table = said(capsys, "compare", *SMALL)
    assert f"{found['witnesses'][0]['peak']:,}" in table
    assert table.splitlines()[0].split()[:4] == ["predict", "(B)", "dry", "run"]


@pytest.mark.parametrize("command", ["models", "gpus", "formulas"])
def test_lists(capsys, command):
    from everybyte.formulas import registry

    expected = {"models": eb.models, "gpus": eb.gpus, "formulas": registry}[command]()
    found = no_fractions(said(capsys, command, "--json"))
    assert [entry["name"] for entry in found] == list(expected)
    table = said(capsys, command).splitlines()
    assert [line.split()[0] for line in table[2:]] == list(expected)
    sample = found[0]
    if command == "models":
        assert sample["parameters"] == 124439808 and sample["layers"] == 12
    elif command == "gpus":
        assert sample["memory"] == expected[sample["name"]].memory
    else:
        assert sample["expression"] == str(expected[sample["name"]].expr)


def test_every_option_reaches_the_setup(capsys):
    changed = {
        "batch": 2, "sequence": 16, "precision": "bf16-master", "optimizer": "momentum", "optimizer_impl": "loop",
        "attention": "eager", "dropout": 0.25, "loss": "chunked", "loss_chunks": 3, "master_gradients": "both",
    }  # fmt: skip
    others = {"checkpointing", "checkpoint_every", "accumulation"}
    others |= {
        "mesh",
        "adapters",
        "quantization",
        "gpus",
        "sharding",
        "fsdp_version",
        "sharding_units",
        "replicas",
        "offload",
        "buckets",
        "no_sync",
        "optimizer_in_backward",
        "resharding",
        "resharding_gpus",
        "muon_gather",
        "linear_attention",
        *vars(LOOPS["plain"]),
        "loop",
    }
    assert changed.keys() | others == {f.name for f in fields(eb.Setup)}
    options = [word for field, value in changed.items() for word in ("--" + field.replace("_", "-"), str(value))]
    for command in ("budget", "dry-run"):
        found = json.loads(said(capsys, command, "gpt2", *options, "--json"))
        assert found["setup"] == eb.Setup(**changed).as_dict()


def test_adapters_are_said_in_words(capsys):
    found = json.loads(said(capsys, "budget", *SMALL, "--adapters", "rank=8 targets=qkv,up dropout=0.05", "--json"))
    said_so = {"rank": 8, "targets": ["qkv", "up"], "dtype": "fp32", "base": None, "dropout": 0.05}
    assert found["setup"]["adapters"] == said_so
    assert main(["budget", "gpt2", "--adapters", "rank=8 target=up"]) == 2
    assert "Lora.field: 'target' is unknown; did you mean 'targets'?" in capsys.readouterr().err


def test_a_mesh_is_said_in_words(capsys):
    assert main(["budget", *SMALL, "--gpus", "12", "--mesh", "tensor=8"]) == 2
    assert "Setup.gpus: 12 are no multiple of the 8 GPUs of the mesh (tensor=8)" in capsys.readouterr().err
    assert main(["budget", *SMALL, "--mesh", "tensors=8"]) == 2
    assert "Mesh.field: 'tensors' is unknown; did you mean 'tensor'?" in capsys.readouterr().err
    assert main(["budget", *SMALL, "--mesh", "none", "--json"]) == 0


def test_a_field_that_is_on_or_off_is_a_switch(capsys):
    options = ["--sharding", "zero3", "--gpus", "2", "--accumulation", "2", "--batch", "1", "--sequence", "8"]
    for on in ([], ["--no-sync"]):
        assert json.loads(said(capsys, "budget", "gpt2", *options, *on, "--json"))["setup"]["no_sync"] is bool(on)


@pytest.mark.parametrize("command", ["budget", "dry-run"])
def test_what_is_offloaded_is_said(capsys, command):
    shared = [*SMALL, "--gpus", "4", "--sharding", "zero3"]
    assert "host" not in json.loads(said(capsys, command, *shared, "--json"))
    there = json.loads(said(capsys, command, *shared, "--offload", "cpu", "--json"))["host"]
    assert there.keys() == {"parameters", "gradients", "optimizer"} and min(there.values()) > 0
    assert f"{there['optimizer']:,}" in said(capsys, command, *shared, "--offload", "cpu")


@pytest.mark.parametrize("command", ["budget", "dry-run"])
def test_it_rounds_up(capsys, command):
    exact, rounded = (
        json.loads(said(capsys, command, *SMALL, "--json", *more)) for more in ([], ["--rounding", "512"])
    )
    assert exact["phases"]["after_forward"] < rounded["phases"]["after_forward"]
    assert all(value % 512 == 0 for value in [*rounded["parts"].values(), *rounded["phases"].values()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bugdet gpt2", "command.name: 'bugdet' is unknown; did you mean 'budget' or 'bisect'? allowed: models, "),
        ("budget", "the following arguments are required: model; see everybyte budget --help"),
        ("budget gtp2", "model.name: 'gtp2' is unknown; did you mean 'gpt2'"),
        ("dry-run gtp2", "model.name: 'gtp2' is unknown; did you mean 'gpt2'"),
        ("compare gtp2", "model.name: 'gtp2' is unknown; did you mean 'gpt2'"),
        ("budget gpt2 --precision bf16-mix", "Setup.precision: 'bf16-mix' is unknown; did you mean 'bf16-mixed'?"),
        ("budget gpt2 --bathc 2", "budget.option: '--bathc' is unknown; did you mean '--batch'"),
        ("models --batch 2", "models.option: '--batch' is unknown; allowed: --help, --json\n"),
        ("layouts gpt2 --wrong", "layouts.option: '--wrong' is unknown; "),
        ("budget gpt2 gpt2-xl", "budget: 'gpt2-xl' is a word too many; allowed: model; see everybyte budget --help"),
        ("models gpt2", "models: 'gpt2' is a word too many; allowed: none; see everybyte models --help"),
        ("--json budget gpt2", "'--json' before the command; allowed: --help, --version; a command's own options"),
        (
            "budget gpt2 --batch two",
            "argument --batch: 'two'; allowed: a whole number, such as 1024; see everybyte budget --help",
        ),
        ("budget gpt2 --batch 1,024", "argument --batch: '1,024'; allowed: a whole number, such as 1024; "),
        ("budget gpt2 --dropout 0,1", "argument --dropout: '0,1'; allowed: a number, such as 0.1; "),
        ("budget gpt2 --rank 1", "budget.rank: 1; allowed: 0\n"),
        ("budget gpt2 --rank 5 --gpus 4", "budget.rank: 5 is not a whole number from 0 to 3"),
        ("budget gpt2 --batch", "argument --batch: expected one argument; "),
        ("budget gpt2 --batch -1", "Setup.batch: -1 is not a whole number from 1 to "),
        ("budget gpt2 --dropout nan", "Setup.dropout: nan is not a number in [0, 1)"),
        ("dry-run gpt2 --rounding 0", "dry_run.rounding: 0 is not a whole number from 1 to "),
        ("budget gpt2 --rounding 0", "budget.rounding: 0 is not a whole number from 1 to "),
        ("budget gpt2 --sequence 1025", "Setup.sequence: 1025 is more than the 1024 positions of gpt2; "),
        (
            "budget bert-large --sequence 512",
            "Model.causal: False of bert-large is not a GPT's; allowed: True; eb.dry_run and eb.derive take what transformers builds",
        ),
        (
            "compare bert-large --sequence 512",
            "Model.causal: False of bert-large is not a GPT's; allowed: True; eb.dry_run and eb.derive take what transformers builds",
        ),
        ("budget gpt2 --master-gradients fp32", "Setup.master_gradients: 'fp32' needs precision 'bf16-master'"),
    ],
)
def test_bad_input_is_said_in_one_line(capsys, arguments, message):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"everybyte: {message}")
    assert err.endswith("\n") and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("train.py", "-- python train.py"),
        ("--script train.py", "-- python train.py"),
        ("--script=train.py", "-- python train.py"),
        ("python train.py --lr 3", "-- python train.py --lr 3"),
        ("--steps 2 --gpu t4 train.py 2 --steps 5", "--steps 2 --gpu t4 -- python train.py 2 --steps 5"),
        ("--gpu t4 train.py -- --lr 3", "--gpu t4 -- python train.py --lr 3"),
        ("torchrun --nproc-per-node 2 train.py", "-- torchrun --nproc-per-node 2 train.py"),
    ],
)
def test_a_script_in_the_wrong_place_is_told_the_right_one(capsys, typed, right):
    assert main(["rehearse", *typed.split()]) == 2
    assert capsys.readouterr().err.endswith(
        f"before the --; allowed: the script and its arguments after it, everybyte rehearse {right}\n"
    )


@pytest.mark.parametrize(
    "typed",
    ["models", "budget gpt2", "layouts gpt2", "serve gpt2 --context 9", "align dpo gpt2", "record", "rehearse", "published", "doctor x", "completion zsh"],
)  # fmt: skip
def test_the_options_that_are_listed_are_those_of_the_usage(capsys, typed):
    with pytest.raises(SystemExit):
        main([typed.split()[0], "--help"])
    usage = capsys.readouterr().out.partition("\n\n")[0]
    assert main([*typed.split(), "--nothing-such"]) == 2
    listed = capsys.readouterr().err.partition("allowed: ")[2].strip().split(", ")
    assert sorted(listed) == sorted({"--help", *re.findall(r"--[a-z-]+", usage)})


@pytest.mark.parametrize("asked", [["help"], ["help", "fit"]])
def test_help_is_a_word_too(capsys, asked):
    with pytest.raises(SystemExit) as done:
        main(asked)
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: everybyte {' '.join(asked[1:])}")


LOST = """
import signal, sys, time
from everybyte import command

class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def long(*_, **__):
    Interrupted()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass

command.answers.predict = long
sys.exit(command.main(["budget", "gpt2"]))
"""


def test_ctrl_c_while_something_is_thrown_away_is_not_forgotten():
    done = run(sys.executable, "-c", LOST)
    assert (done.returncode, done.stderr) == (130, "everybyte: interrupted\n")


def test_where_nobody_reads_it_says_so_to_nobody():
    closed = (
        "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'everybyte_command', 'gpus'])"
    )
    done = subprocess.run([sys.executable, "-c", closed], stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_control_characters_of_the_users_stay_on_the_line(capsys):
    assert main(["budget", "gpt2\nall is well\x1b[31m"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and "\x1b" not in err


def test_an_error_of_ours_is_said_in_a_line_and_its_traceback_is_to_be_had(monkeypatch, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("everybyte.command.answers.predict", broken)
    assert main(["budget", "gpt2"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("everybyte: this is a mistake of ours, ZeroDivisionError") and len(err.splitlines()) == 1
    monkeypatch.setenv("EVERYBYTE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["budget", "gpt2"])


def test_alone_it_shows_a_first_example_which_is_what_that_command_says(capsys):
    shown = said(capsys)
    assert said(capsys, *FIRST).strip() in shown and f"everybyte {' '.join(FIRST)}\n" in shown
    [other] = [line.split() for line in shown.splitlines() if line.startswith("  everybyte ")]
    assert main(other[1:]) == 0  # what it offers next runs too


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("fit gpt2 --gpu t4 --sequence 128", 0),
        ("fit gpt2-xl --memory 2GiB", 1),
        ("serve llama-3.1-8b --memory 12GiB --context 1024", 1),
        ("align dpo gpt2-xl --memory 1GiB", 2),
        ("align dpo gpt2 --batch 1 --gpu t4", 0),
    ],
)
def test_the_status_is_the_answer(capsys, arguments, status):
    assert main([*arguments.split(), "--json"]) == status
    out = capsys.readouterr().out
    assert (json.loads(out)["fits"] if "fits" in out else None) is (
        None if status == 2 else status == 0
    ) or "fit " in arguments
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = " ".join(capsys.readouterr().out.split())
    assert f"{status} {STATUSES[status]}" in listed


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "plain", "colored"), [(Terminal, "", True), (Terminal, "1", False), (io.StringIO, "", False)]
)
def test_colors_are_for_a_terminal_alone(monkeypatch, stream, plain, colored):
    monkeypatch.setenv("NO_COLOR", plain)
    monkeypatch.setenv("TERM", "xterm")
    out, err = stream(), stream()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        assert main(["budget", *SMALL]) == 0 and main(["budget", *SMALL, "--json"]) == 0 and main(["bugdet"]) == 2
    assert ("\x1b[1mpredict" in out.getvalue()) is colored and (
        "\x1b[31meverybyte:\x1b[0m " in err.getvalue()
    ) is colored
    assert json.loads(out.getvalue().splitlines()[-1])["peak"] > 0  # what a script reads has none


COMPLETED = [
    ("everybyte bud", {"budget"}),
    ("everybyte budget --preci", {"--precision"}),
    ("everybyte budget --precision bf16-m", {"bf16-mixed", "bf16-master", "bf16-megatron"}),
    ("everybyte fit gpt2-x", {"gpt2-xl"}),
    ("everybyte fit gpt2 --gpu rtx-409", {"rtx-4090"}),
    ("everybyte completion z", {"zsh"}),
    ("everybyte align dpo gpt2 --reference bef", {"before"}),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_bash_completes_what_the_parser_takes(capsys, typed, offered):
    if not shutil.which("bash"):
        pytest.skip("there is no bash on this machine")
    *before, last = typed.split()
    asked = f"COMP_WORDS=({typed}); COMP_CWORD={len(before)}; _everybyte; echo ${{COMPREPLY[@]}}"
    program = f"{said(capsys, 'completion', 'bash')}\n{asked}"
    found = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=30)
    assert (found.stderr, set(found.stdout.split())) == ("", offered)


@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_fish_completes_it_too(capsys, typed, offered):
    if not shutil.which("fish"):
        pytest.skip("there is no fish on this machine")
    program = f"{said(capsys, 'completion', 'fish')}\ncomplete -C '{typed}'"
    found = subprocess.run(["fish", "-N", "-c", program], capture_output=True, text=True, timeout=30)
    words = {line.partition("\t")[0] for line in found.stdout.splitlines()}
    assert (found.stderr, words) == ("", offered)


@pytest.mark.parametrize("first", ["", "autoload -Uz compinit; compinit -u\n"], ids=["bare", "with compinit"])
def test_zsh_completes_at_its_prompt(capsys, tmp_path, first):
    if not shutil.which("zsh"):
        pytest.skip("there is no zsh on this machine")
    pexpect = pytest.importorskip("pexpect")

    script = tmp_path / "everybyte.zsh"
    script.write_text(f"{first}{said(capsys, 'completion', 'zsh')}")
    environment = os.environ | {"TERM": "dumb", "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    shell = pexpect.spawn("zsh", ["-f", "-i"], env=environment, encoding="utf-8", timeout=30, dimensions=(40, 200))
    shell.sendline(f"source {script}; echo sour''ced")
    shell.expect_exact("sourced\r\n")
    assert "not found" not in shell.before
    for typed, completed in (("everybyte bud\t", "everybyte budget "), ("--precision bf16-meg\t", "bf16-megatron")):
        shell.send(typed)
        shell.expect_exact(completed)
    shell.close(force=True)


def test_every_shell_completes_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    ([a-z-]+) ", capsys.readouterr().out, re.M)
    assert len(commands) > 15
    for shell in ("bash", "zsh", "fish"):
        text = said(capsys, "completion", shell)
        assert json.loads(said(capsys, "completion", shell, "--json")) == {"shell": shell, "script": text.rstrip("\n")}
        assert all(re.search(rf"\b{command}\b", text) for command in commands)
    assert main(["completion", "csh"]) == 2


@pytest.mark.parametrize("command", ["budget", "dry-run", "compare"])
def test_help_lists_every_field_and_its_values(capsys, command):
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for field in fields(eb.Setup):
        if isinstance(field.default, bool):
            assert f"--{field.name.replace('_', '-')} a switch" in text
            continue
        option = f"--{field.name.replace('_', '-')} VALUE "
        assert text.count(option) >= 1
        said = text.rsplit(option, 1)[1].split(" --")[0]
        others = {"optimizer_impl": "the optimizer's first", "adapters": "none"} | dict.fromkeys(
            vars(LOOPS["plain"]), "the loop's"
        )
        others |= {name: f"the model's own, or {value}" for name, value in OWNED.items()}
        usual = others.get(field.name, field.default)
        assert said.endswith(f"(default {usual})")
        if field.name in CHOICES:
            assert said.startswith(", ".join(CHOICES[field.name]) + " (")
    assert "--batch VALUE 1 to 16,777,216 (default 8)" in text
    assert "--dropout VALUE 0 or more, below 1 (default the model's own, or 0.0)" in text


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for command in ("models", "gpus", "formulas", "budget", "dry-run", "compare"):
        assert f"\n    {command} " in text


def test_the_console_script_runs():
    script = Path(sys.executable).parent / "everybyte"
    found = run(script, "budget", *SMALL, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("\n") == 1
    assert json.loads(found.stdout) == eb.budget(eb.model("gpt2"), eb.Setup(batch=1, sequence=8)).as_dict()
    assert run(script, "bugdet").returncode == 2


def test_where_torch_is_missing_the_formulas_run_and_the_dry_run_says_what_it_needs():
    found = run(sys.executable, "-c", WITHOUT_TORCH, "budget", *SMALL, "--json")
    assert found.returncode == 0 and json.loads(found.stdout)["peak"] > 0
    for command in ("dry-run", "compare"):
        found = run(sys.executable, "-c", WITHOUT_TORCH, command, *SMALL)
        assert (found.returncode, found.stdout) == (2, "")
        assert len(found.stderr.splitlines()) == 1
        assert found.stderr.startswith("everybyte: dry-run: ") and "torch" in found.stderr
        assert "it needs PyTorch: pip install 'everybyte[dryrun]'" in found.stderr


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_reader_who_has_enough_is_no_error(json):
    command = [sys.executable, "-m", "everybyte_command", "models", *json]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("arguments", [["models"], ["gpus"], ["formulas"], ["budget", *SMALL]])
def test_a_terminal_without_unicode_shows_it_too(arguments, monkeypatch, capsys):
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii")  # which raises where it is given another character
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert main(arguments) == 0
    assert terminal.buffer.getvalue().isascii() and len(terminal.buffer.getvalue()) > 100
    assert capsys.readouterr().err == ""


ENTERED = "import sys; print(flush=True); from everybyte_command import main; sys.argv[:] = ['everybyte', 'budget', 'gpt2']; sys.exit(main())"


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C reaches all of its processes there")
@pytest.mark.parametrize("after", [0.01, 0.04, 0.08, 0.15])
def test_ctrl_c_while_the_package_is_imported_is_one_line(after):
    """From the entry's first line on; before it Python itself starts, 0.02 s in which a Ctrl-C is Python's own to say."""
    with subprocess.Popen(
        [sys.executable, "-c", ENTERED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        command.stdout.readline()
        time.sleep(after)
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=60)
    assert (command.returncode, err) == (130, "everybyte: interrupted\n") or (command.returncode == 0 and "peak" in out)


def test_the_entry_imports_nothing_before_it_can_say_so():
    code = "import sys; before = set(sys.modules); import everybyte_command; print(set(sys.modules) - before)"
    assert run(sys.executable, "-c", code).stdout == "{'everybyte_command'}\n"


def test_once_all_is_said_ctrl_c_is_silent():
    code = "import signal, sys, everybyte_command as e; sys.argv[:] = ['everybyte', 'gpus']; e.main(); signal.raise_signal(2)"
    done = run(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_the_command_is_that_entry():
    said = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert said["project"]["scripts"] == {"everybyte": "everybyte_command:main"}
    assert said["tool"]["setuptools"]["py-modules"] == ["everybyte_command", "everybyte_pytest"]


def test_the_code_that_runs_a_model_is_chosen(capsys):
    words = "fit llama-3.2-1b --gpu rtx-4090 --sequence 2048 --precision bf16 --json"
    found = {}
    for code in ("reference", "transformers"):
        assert main([*words.split(), "--code", code]) == 0
        found[code] = json.loads(capsys.readouterr().out)
    assert [said["value"] for said in found.values()] == [3, 2]
    model = eb.model("llama-3.2-1b")
    setup = eb.Setup(batch=2, sequence=2048, precision="bf16")
    assert found["transformers"]["peak"] == eb.budget(model, setup, rounding=512).peak
    assert [said["model"]["name"] for said in found.values()] == ["llama-3.2-1b, the book's code", "llama-3.2-1b"]
    assert main(["dry-run", "--hf", "config.json", "--code", "transformers"]) == 2
    assert "--code: 'transformers' with --hf, which says its own code; allowed: with a name" in capsys.readouterr().err
