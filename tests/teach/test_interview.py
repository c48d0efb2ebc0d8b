"""The interview's cards: every number recomputed and found, none typed; exports; the drill."""

import csv
import io
import json
import re
import sqlite3
import zipfile
from decimal import Decimal
from functools import cache
from html import unescape
from math import ceil, sqrt
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.answers.plan import work
from everybyte.teach import interview
from everybyte.teach.interviewing import NUMBERS, PARTS, Card, cards, numbers, read_cards

ROOT = Path(__file__).resolve().parents[2]
M, GPU = eb.model("gpt2"), eb.gpu("a10g")
SETUP = eb.Setup(batch=4, sequence=256, precision="bf16-mixed")
DECK = interview(M, GPU, SETUP)
P, L, H, V, A = 124_439_808, 12, 768, 50_257, 12
B, S = 4, 256
T, SCORES = B * S, B * A * S * S
LLAMA = eb.model("llama-3-8b", code="reference")


def peak(**changes):
    return eb.budget(M, SETUP.replace(**changes)).peak


def phase(name, **changes):
    return eb.budget(M, SETUP.replace(**changes)).phases[name]


def at(name, **changes):
    return int(eb.formula(name).at(M, SETUP.replace(**changes)))


def forward_flops():
    return L * (2 * T * 12 * H * H + 4 * B * S * S * H) + 2 * T * H * V


def taken(optimizer):
    """What a real step takes on tensors without data: twice the token table, and one number for each weight outside the blocks' matrices."""
    phases = eb.dry_run(M, SETUP.replace(precision="fp32", optimizer=optimizer)).phases
    found = phases["step"] - phases["after_step"]
    assert found == {"lion": 2 * 4 * V * H, "muon": 4 * (P - L * 12 * H * H)}[optimizer]
    return found


def best(kept):
    return min(kept, key=kept.get)


SQUARE = 2 * B * S * S * H
STEP_FLOPS = 3 * forward_flops() - L * SQUARE * 5 // 2  # half of seven squares, where three forwards have six
CACHE = 2 * L * H * 2
ADAPTERS = L * 4 * 16 * 2 * H
USABLE = eb.Headroom().usable(GPU)
ROUNDED = eb.budget(M, SETUP, rounding=512).peak
#: Of a real step's requests, simulated; and what the GPU leaves the allocator.
RESERVED, ROOM = eb.dry_run(M, SETUP).on(GPU, steps=4, whole=False).reserved, eb.Headroom().room(GPU)
LARGE = 70_553_706_496
RING = 7 * (P // 8)
#: Eight collectives a layer, seven eighths of 8,192 tokens of 8,192 numbers each.
STREAM = 80 * 8 * 7 * 8192 * 8192 * 2 // 8


@cache
def facts():
    """The second opinion on every number: by hand where a hand can, by the dry run, by the budget of a setup spelled out."""
    kept = {
        k: at("checkpoint.inputs", checkpointing="every-k", checkpoint_every=k)
        + at("checkpoint.segment", checkpointing="every-k", checkpoint_every=k)
        for k in range(1, L + 1)
    }
    return _of_many() | _of_other_models() | _of_dialogues() | {
        "model": "gpt2", "gpu": GPU.title, "precision": "bf16-mixed", "batch": 4, "sequence": 256, "tokens": 1024, "layers": 12,
        "parameters": P, "embeddings": V * H + 1024 * H, "embeddings_share": (V + 1024) * H / P, "head_again": V * H,
        "bytes_per_parameter": 16, "states": 16 * P, "weights_fp32": 4 * P, "weights_bf16": 2 * P,
        "adam_states": 8 * P, "momentum_states": 4 * P,
        "adafactor_states": 4 * (V + 1024 + 4 * H + L * 29 * H),  # of a block, 16 H of rows and columns, 13 H in vectors
        "lion_states": 4 * P, "lion_step": lambda: taken("lion"), "muon_states": 8 * P - 4 * L * 12 * H * H,
        "muon_saved": 4 * L * 12 * H * H / (8 * P), "muon_step": lambda: taken("muon"),
        "adam_share": 0.5, "fp16_smallest": 2**-24, "fp16_largest": 65_504,
        "bf16_largest": (2 - 2**-7) * 2.0**127, "bf16_spacing": 2**-7, "bf16_lost": 2**-8, "fp32_lost": 2**-24,
        "fp16_vanishing": sqrt(2**-25 / 0.001), "half_of_adam": 4 * P, "states_autocast": 16 * P, "states_master": 16 * P,
        "states_bf16": 8 * P, "master": 4 * P, "gradients": 4 * P,
        "block_activations": at("activations.block"), "bytes_per_number": at("activations.block") / (T * H),
        "activations": at("activations"), "activations_twice": at("activations", batch=8),
        "eager_activations": at("activations", attention="eager"),
        "eager_short": at("activations", attention="eager", batch=8, sequence=128),
        "flash_activations": at("activations"), "flash_short": at("activations", batch=8, sequence=128),
        "scores_block": at("attention.scores", attention="eager"), "scores": L * at("attention.scores", attention="eager"),
        "flash_kept": 4 * B * A * S + 24, "eager_peak": lambda: eb.dry_run(M, SETUP.replace(attention="eager")).peak,
        "flash_peak": lambda: eb.dry_run(M, SETUP).peak,
        "flash_lighter": 2.5 * L * SQUARE / (3 * forward_flops()),
        "dropout_cost": at("activations", dropout=0.1) - at("activations"),
        "logits": 2 * T * V, "loss_worst": (4 + 4 + 2) * T * V, "entries_twice": 2 * V, "loss_twice": 10 * T * 2 * V, "stepped": 12 * P,
        "peak": lambda: eb.dry_run(M, SETUP).peak, "peak_at": eb.budget(M, SETUP).peak_at,
        "rest": 12 * P, "after_forward": lambda: eb.dry_run(M, SETUP).phases["after_forward"],
        "step_foreach": phase("step"), "step_fused": phase("step", optimizer_impl="fused"),
        "peak_fp32": peak(precision="fp32"), "peak_mixed": peak(), "mixed_change": peak() / peak(precision="fp32") - 1,
        "mixed_change_one": peak(batch=1) / peak(batch=1, precision="fp32") - 1,
        "casts": at("casts"), "peak_none": peak(), "peak_full": peak(checkpointing="full"),
        "full_flops": L * (2 * T * 8 * H * H + SQUARE) / STEP_FLOPS, "best_every": best(kept), "best_bytes": min(kept.values()),
        "root": sqrt(L), "root_segment": 3, "root_bytes": kept[3],
        "selective_flash": peak() - peak(checkpointing="selective"),
        "operations_flash": peak() - peak(checkpointing="operations"),
        "selective_eager": peak(attention="eager") - peak(attention="eager", checkpointing="selective"),
        "peak_accumulated": peak(batch=1, accumulation=4), "peak_plain": peak(), "peak_chunked": peak(loss="chunked"),
        "moved": (work(M, SETUP.replace(batch=1, accumulation=4)).moved - work(M, SETUP).moved) / 3 / P,
        "largest_batch": lambda: eb.fit(M, SETUP, GPU).value, "longest": lambda: eb.fit(M, SETUP, GPU, "sequence").value,
        "slope": peak(batch=8) // 4 - peak() // 4, "adam_8bit": 2 * (P + 4 * ceil(P / 256)), "rank": 16,
        # Of a token four inputs of 7 H numbers are cast to fp32, where 6 H in bf16 were kept; and A's results for four targets.
        "adapters_kept": 1 + T * (4 * 7 * H - 2 * 6 * H + 4 * 4 * 16) / at("activations.block", precision="bf16"),
        "adapters": ADAPTERS, "adapters_share": ADAPTERS / P, "adapters_states": 16 * ADAPTERS,
        "nf4": P // 2 + ceil(P / 64) + 4 * ceil(ceil(P / 64) / 256), "host_link": GPU.host_link, "bus": 8 * P / GPU.host_link,
        "read_in_place": 8 * P / GPU.bandwidth,
    }  # fmt: skip


def _of_dialogues():
    """Of a 70B model with long sequences, DeepSeek-V3 on 64 GPUs, a server."""
    deepseek = 671_026_419_200
    # Of each of 4,096 tokens eight rows; a row that is here keeps input, both halves of the MLP, their product and four words, a row
    # that is sent its result and ten. And scores of all experts with their sum, and where each group ends.
    rows = 8 * 4096
    return {
        "long_tokens": 32_768, "long_loss": 10 * 32_768 * 128_256, "long_inputs": 80 * 32_768 * 8192 * 2,
        "deepseek": deepseek, "deepseek_active": deepseek - 58 * (256 - 8) * 3 * 2048 * 7168, "deepseek_weights": 2 * deepseek,
        "deepseek_states": 16 * deepseek, "expert_gpus": 64, "deepseek_experts": 2 * 58 * 4 * 3 * 2048 * 7168,
        "deepseek_kept": rows * (2 * (7168 + 4 * 2048) + 16 + 2 * 7168 + 40) + 4096 * (4 * 256 + 4) + 4 * 4,
        "long_context": 131_072,
        "expert_tokens": 4096, "long_request": 2**17 * 2**17, "long_requests": 3, "e4m3_largest": 448.0,
    }  # fmt: skip


def _of_other_models():
    """Layers with a state, pictures, diffusion."""
    # Of a patch in each of 27 layers; and once: ends, three taps, pixels, angles.
    patch = 27 * (22 * 1152 + 4 * 16 + 4 * 4304 + 16) + 8 * 1152 + 3 * (6 * 1152 + 2) + 6 * 16 * 16 * 2 + 8 * 72 + 56
    photo, flux = 94 * 126, 10_601_747_800
    return {
        "state": 2**21, "state_tokens": 4096, "state_loop": 2**21 * (2 * 4096 + 1) + 4 * 32 * 4096 * (6 * 128 + 4),
        # Of a token 1,990 numbers a head, and of a chunk a state and one.
        "state_chunks": 4 * 32 * (4096 * (9 * 128 + 5 * 64 + 2 * 128 + 6) + 64 * (128 * 128 + 1)) + 64**2,
        "state_kernels": 4096 * (16 * 520 + 32 * 132), "state_even": 2**21 // (2 * 2 * 256 * 2), "state_keys": 64,
        "picture_tokens": photo, "picture_patches": 4 * photo, "picture_token": 4 * patch, "picture_kept": 4 * photo * patch + 27 * 24,
        # Three squares of 32 x 32 tokens more; the first block reads no gradient's input.
        "flux_kept": flux, "flux_twice": flux + 3 * 1024 * (38 * 104_756 + 19 * 153_928 - 4 * 3072 - 8), "flux_token": 104_756,
        "flux_rank": 12_533_760,
    }  # fmt: skip


#: vLLM on an H100, Llama 3.1 8B: its profile run, and what nine tenths of the GPU leave after the weights, their rotary table and 0.13 GiB.
ENGINE = 1024 * 38 * 128_256 + 2 * 4096 * (8192 + 2 * 1024) + 32 * 2**20
ENGINE_PAGES = 81_090 * 2**20 * 9 // 10 - (2 * 8_030_261_248 + 131_072 * 128 * 2) - ENGINE - round(0.13 * 2**30)


def _of_many():
    """Of several GPUs, planning and inference."""
    stage = 2 * at("activations.block")
    return {
        "gpus": 8, "ddp_states": 16 * P, "zero1_states": 8 * P + P,
        "zero2_states": 4 * P + 12 * P // 8, "zero3_states": 2 * P, "buckets": 4 * P, "ddp_peak": peak(gpus=8),
        "zero3_peak": peak(gpus=8, sharding="zero3"), "sent_ddp": 2 * RING, "sent_zero3": 3 * RING, "sent_ratio": 1.5,
        "block_flat": at("fsdp.block.flat", gpus=8, sharding="zero3"),
        "model_flat": at("fsdp.model.flat", gpus=8, sharding="zero3", sharding_units="model"),
        "fewest": lambda: eb.fit(M, SETUP.replace(sharding="zero3"), GPU, "gpus").value,
        "stage": stage, "first_stage": 8 * stage, "micro_batches": 32, "bubble": 7 / 32, "bubble_interleaved": 7 / 64,
        "bubble_zero": 7 / 96, "boundary": 2 * T * H, "received": 64 * 2 * T * H,
        # Of 65,536 tokens q and the result, k and v; a sum a row and head; the random state.
        "ring": 16, "ring_kept": 2**16 * (2 * 2 * 4096 + 2 * 2 * 1024 + 4 * 32) + 24,
        "experts_worst": 4, "experts_each": 2 * 32 * 3 * 14_336 * 4096, "experts_rest": 2 * (46_702_792_704 - 8 * 32 * 3 * 14_336 * 4096),
        "cluster": 64, "cluster_states": LARGE // 4,
        "mixtral": 46_702_792_704, "mixtral_active": 12_879_925_248, "mixtral_weights": 2 * 46_702_792_704,
        "rounded_peak": ROUNDED, "rounding": ROUNDED - peak(), "context": GPU.memory - USABLE - sum(
            t.bytes for t in eb.Headroom().terms(GPU) if t.name != "context"),
        "gpu_memory": GPU.memory, "advertised": 24 * 10**9, "advertised_gib": 24 * 10**9, "usable": USABLE,
        "reserved": RESERVED, "room": ROOM, "free": ROOM - RESERVED, "late_step": 5_000, "leak": (ROOM - RESERVED) // 5_000,
        "forward_kept": phase("after_forward") - phase("rest"), "cache_token": CACHE, "cache_all": T * CACHE,
        "cache_llama": 2 * 32 * 8 * 128 * 2, "cache_llama_heads": 2 * 32 * 32 * 128 * 2, "inference": 2 * P + T * CACHE,
        "latent_token": 61 * (512 + 64) * 2, "latent_heads": 61 * 128 * (192 + 128) * 2, "page_tokens": 16, "page": 16 * CACHE,
        "states_trained": 16 * P, "ppo_models": 36 * P, "grpo_models": 18 * P,
        "engine_rows": 1024, "engine_logit": 2 + 4 + 12 + 8 + 12, "engine_run": ENGINE, "engine_pages": ENGINE_PAGES, "engine_tokens": ENGINE_PAGES // (16 * 131_072) * 16,
        "page_waste": 15 * CACHE, "positions": 1024, "cache_longest": 1024 * CACHE,
        # Three tensors of the MLP's inner width and four of the model's, the token itself; the angles' cosine and sine, the position.
        "prefill_token": 2 * (3 * 18_944 + 4 * 3584) + 8 + 2 * 2 * 128 + 8, "prefill_cache": 57_344,
        "large_weights": 2 * LARGE, "large_fp32": 4 * LARGE, "large_loading": 6 * LARGE, "large_copies": 16 * LARGE,
        "large_share": LARGE // 4,
        "tensor_gpus": 8, "tensor_gpu": eb.gpu("h100-80gb").title, "tensor_tokens": 8192, "kept_whole": 34.0, "kept_tensor": 10 + 24 / 8,
        "kept_sequence": 34 / 8 + 4 * 7 / 8, "kept_megatron": 34 / 8, "tensor_sent": STREAM, "nvlink": 450 * 10**9,
        "tensor_near": STREAM / 450e9, "tensor_far": STREAM / (7 / 8) * (15 / 16) / 400e9,
        "tensor_products": 6 * LARGE * 8192 / 8 / eb.gpu("h100-80gb").bf16_flops,
        "training_times": peak() / (2 * P + T * CACHE), "flops": STEP_FLOPS, "six_share": 6 * P * T / STEP_FLOPS,
        "seconds": STEP_FLOPS / GPU.bf16_flops,
    }  # fmt: skip


def significant(x, digits):
    """Rounded in decimal, as by hand; no zeros behind the point."""
    x = Decimal(x)
    exact = x.quantize(Decimal(1).scaleb(x.adjusted() - digits + 1)) if x else Decimal(0)
    return f"{exact:,f}".rstrip("0").rstrip(".") if exact != exact.to_integral() else f"{int(exact):,}"


def said_bytes(n):
    power = min(max(len(f"{abs(n):b}") - 1, 0) // 10, 4)
    return f"{significant(Decimal(n) / 1024**power, 3)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def said_count(n):
    if n < 100_000:
        return f"{n:,}"
    name, power = ("billion", 9) if n >= 10**9 else ("million", 6) if n >= 10**6 else ("", 0)
    return f"{significant(Decimal(n).scaleb(-power), 3)} {name}".strip()


#: How a number is said, without the module's own rounding.
SHOWN = {
    "text": str, "bytes": said_bytes, "vendor": lambda n: f"{n / 1e9:.0f} GB", "count": said_count,
    "share": lambda x: f"{significant(100 * x, 2)}%", "signed": lambda x: f"{'+' * (x >= 0)}{significant(100 * x, 2)}%",
    "number": lambda x: significant(x, 3), "tiny": lambda x: f"{float(f'{x:.1e}'):g}",
    "teraflop": lambda n: f"{significant(Decimal(n) / 10**12, 3)} TFLOP",
    "milliseconds": lambda s: f"{significant(1000 * s, 3)} ms",
}  # fmt: skip
TEXTS = ("question", "answer", "follow_up", "wrong", "why")
#: What may stand in a card with a digit in it: names, not amounts.
NAMES = r"\b(fp32|fp16|bf16|GPT-2|Llama 3( 8B|\.1 (8B|70B))?|70B|DeepSeek-V3|Qwen2\.5-7B|Qwen3-(Next|VL)|ZeRO-[123]|FSDP[12]|FP8|1F1B|NF4|8-bit|16-bit|(16|32) bits)\b"
EVERY = pytest.mark.parametrize("id", cards())


def truth(name):
    value = facts()[name]
    value = value() if callable(value) else value
    return SHOWN[NUMBERS[name][0]](value)


def text(answered):
    return " ".join(getattr(answered, field) for field in TEXTS)


def test_at_least_forty_over_all_parts():
    assert len(cards()) >= 40
    assert {card.part for card in cards().values()} == set(PARTS)
    assert len({card.question for card in cards().values()}) == len(cards())


def test_every_number_is_asked_for_and_has_a_second_opinion():
    assert {name for card in cards().values() for name in card.names} == NUMBERS.keys() == facts().keys()


@EVERY
def test_every_number_of_every_card_is_recomputed_and_stands_there(id):
    answered = DECK.card(id)
    assert answered.missing == {}
    for field in TEXTS:
        by_hand = re.sub(r"\{(\w+)\}", lambda m: truth(m[1]), getattr(cards()[id], field))
        assert getattr(answered, field) == by_hand


@EVERY
def test_no_number_is_typed_and_the_answer_takes_thirty_seconds(id):
    for field in TEXTS:
        typed = re.sub(r"\{\w+\}", "", getattr(cards()[id], field))
        assert not re.search(r"\d", re.sub(NAMES, "", typed)), typed
    assert 25 <= len(DECK.card(id).answer.split()) <= 75  # at 150 words a minute


@EVERY
def test_it_rests_on_a_chapter_that_is_there(id):
    assert (ROOT / "notebooks" / DECK.card(id).chapter).is_file()


def test_by_default_it_is_a_llama_on_eight_gpus():
    deck = interview()
    assert deck.case.model.name == "llama-3.1-8b" and deck.case.setup.gpus == 8 and deck.case.gpu.name == "h100-80gb"
    assert not [name for name in NUMBERS if deck.value(name)[1]]
    # What a Llama has not, or has at its largest, is another's.
    for id in ("dropout", "how-many-parameters", "larger-vocabulary"):
        assert "no number" not in text(deck.card(id))
    assert "38.6 million" in deck.card("how-many-parameters").why
    assert deck.shown("loss_twice") != deck.shown("loss_worst")
    assert "8.03 billion parameters" in deck.card("how-many-parameters").answer
    room = eb.Headroom().room(deck.case.gpu, deck.case.setup)
    step = eb.budget(deck.case.model, deck.case.setup).on(deck.case.gpu, memory=room, steps=4, whole=False)
    assert deck.value("free")[0] == room - step.reserved


def test_numbers_follow_the_choice():
    other = interview("gpt2-xl", "h100-80gb", SETUP)
    assert "1.56 billion parameters" in other.card("how-many-parameters").answer
    assert "H100" in other.card("gigabytes").answer
    changed = [c.id for c in DECK.cards if text(DECK.card(c.id)) != text(other.card(c.id))]
    assert len(changed) > 35


def test_seconds_are_at_the_rate_of_the_data_type():
    slow = interview(M, GPU, SETUP.replace(precision="fp32")).card("flops").answer
    assert SHOWN["milliseconds"](STEP_FLOPS / GPU.fp32_flops) in slow


@pytest.mark.parametrize(
    ("how", "value", "said"),
    [
        ("bytes", 41_371_344_076, "38.5 GiB"), ("bytes", 1023 * 2**20 + 2**19, "1,020 MiB"), ("bytes", 131_072, "128 KiB"),
        ("bytes", 0, "0 B"), ("count", 8192, "8,192"), ("count", 128_256, "128,000"),
        ("count", 8_030_261_248, "8.03 billion"), ("count", 124_439_808, "124 million"), ("share", 0.1484, "15%"), ("share", 0.005, "0.5%"),
        ("signed", 0.0, "+0%"), ("signed", -0.1484, "-15%"), ("number", 36.07, "36.1"), ("number", 34.0, "34"), ("tiny", 2**-24, "6e-08"),
    ],
)  # fmt: skip
def test_a_number_is_rounded_as_a_person_says_it(how, value, said):
    assert numbers.SHOWN[how](value) == said == SHOWN[how](value)


def test_every_answer_can_be_read_where_nothing_folds():
    shown = unescape(DECK.table(answers=True)._repr_html_())
    assert all(DECK.card(id).answer in shown and DECK.card(id).question in shown for id in cards())
    assert not any(DECK.card(id).answer in unescape(DECK.table()._repr_html_()) for id in cards())


def test_what_is_not_derived_is_said():
    answered = interview("bert-large", "h100-80gb").card("when-is-the-peak")
    assert "(no number here)" in answered.answer
    assert "bert-large" in repr(answered) and "No number here" in answered._repr_html_()
    assert interview("llama-3-8b").card("kv-cache").missing == {}


def test_a_step_that_does_not_run_has_no_free_bytes():
    """Tensors alone would fit the second: 21.8 GiB are usable, and PyTorch's default allocator reserves more."""
    for model, card, batch in (("gpt2-xl", "t4", 4), ("gpt2", "a10g", 90)):
        setup = SETUP.replace(batch=batch)
        answered = interview(model, card, setup).card("oom-late")
        assert f"reserves more than {card} has" in answered.missing["free"]
    assert eb.budget(M, setup, rounding=512).peak < eb.Headroom().usable(GPU)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_a_page(part, tmp_path):
    page = DECK.save_page(part, tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith(f"# Interview, part {part}: {PARTS[part]}\n")
    assert re.findall("^### ", page, re.M) == ["### "] * len(DECK.about(part=part))
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]


def test_csv_comes_back(tmp_path):
    data = DECK.save_csv(tmp_path / "cards.csv").read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(data, newline="")))
    assert [row["id"] for row in rows] == list(cards())
    for row in rows:
        assert [row[f] for f in TEXTS] == [getattr(DECK.card(row["id"]), f) for f in TEXTS]
    assert [p.name for p in tmp_path.iterdir()] == ["cards.csv"]


def notes(path, folder):
    with zipfile.ZipFile(path) as package:
        package.extract("collection.anki2", folder)
    base = sqlite3.connect(folder / "collection.anki2")
    found = {guid: fields.split("\x1f") for guid, fields in base.execute("select guid, flds from notes")}
    decks = json.loads(base.execute("select decks from col").fetchone()[0])
    base.close()
    return found, decks


def test_anki_comes_back_and_a_card_keeps_its_identity(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    found, decks = notes(DECK.save_anki(out / "cards.apkg"), tmp_path)
    assert [p.name for p in out.iterdir()] == ["cards.apkg"]
    assert "Every Byte: interview" in {deck["name"] for deck in decks.values()}
    assert {unescape(front) for front, _ in found.values()} == {DECK.card(id).question for id in cards()}
    for id in cards():
        back = next(back for front, back in found.values() if unescape(front) == DECK.card(id).question)
        assert DECK.card(id).answer in unescape(back)
    other = notes(interview("gpt2-medium").save_anki(out / "other.apkg"), tmp_path)[0]
    assert other.keys() == found.keys() and other != found


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "cards.csv").mkdir()
    with pytest.raises(OSError):
        DECK.save_csv(tmp_path / "cards.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["cards.csv"]


def test_the_drill_brings_back_what_was_missed():
    drill = DECK.drill(["flash", "logits", "lora", "kv-cache", "flops"])
    drill.answer("tiles").missed()
    for _ in range(5):
        drill.answer("so").knew()
    assert drill.asked == ["flash", "logits", "lora", "kv-cache", "flash", "flops"]
    assert drill.card is None and drill.left == 0 and "1 missed" in repr(drill)
    assert drill.misses == {"flash": 1}


def test_the_last_card_comes_back_too_and_every_drill_is_the_same():
    first, second = DECK.drill(["flash"]), DECK.drill(["flash"])
    for drill in (first, second):
        assert drill.answer("no").missed().card.card.id == "flash"
        drill.answer("yes").knew()
    assert first.asked == second.asked == ["flash", "flash"]


def test_the_drill_hides_the_answer_until_the_reader_has_said_something():
    drill = DECK.drill(["flash"])
    answer = drill.card.answer
    assert answer not in repr(drill)
    for early in (drill.knew, drill.missed):
        with pytest.raises(ValueError, match="answer first"):
            early()
    drill.answer("tiles")
    assert answer in repr(drill)


def test_user_text_is_escaped(tmp_path):
    deck = interview(M.replace(name="<script>x</script>"), GPU, SETUP)
    shown = deck.browse()._repr_html_() + deck.table()._repr_html_() + deck.card("flash")._repr_html_()
    found, _ = notes(deck.save_anki(tmp_path / "x.apkg"), tmp_path)
    shown += "".join(map("".join, found.values()))
    assert "<script" not in shown and "&lt;script" in shown
    assert "<script" not in deck.page(1)


CARD = cards()["flash"]
ENTRY = {f: getattr(CARD, f) for f in ("part", "topic", "chapter", *TEXTS)}


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("gpu.name", lambda: interview(M, "a1000")),
        ("model", lambda: interview("gpt3")),
        ("interview.of", lambda: interview(3)),
        ("interview.setup", lambda: interview(M, GPU, {"batch": 3})),
        ("Setup.sequence", lambda: interview(M, GPU, eb.Setup(sequence=4096))),
        ("Deck.id", lambda: DECK.card("flsh")),
        ("Deck.topic", lambda: DECK.about("cooking")),
        ("Deck.part", lambda: DECK.page(6)),
        ("Deck.part", lambda: DECK.about("attention").page(2)),
        ("Deck.number", lambda: DECK.value("pek")),
        ("drill.ids", lambda: DECK.drill(["nothing"])),
        ("drill.ids", lambda: DECK.drill([])),
        ("drill.ids", lambda: DECK.drill(["flash", "flash"])),
        ("drill.answer", lambda: DECK.drill().answer(...)),
        ("save_anki.path", lambda: DECK.save_anki("cards.zip")),
        ("Card x.answer", lambda: read_cards({"x": ENTRY | {"answer": "{pek}"}})),
        ("Card x.why", lambda: read_cards({"x": ENTRY | {"why": " "}})),
        ("Card x.part", lambda: read_cards({"x": ENTRY | {"part": 9}})),
        ("Card x.wrong", lambda: read_cards({"x": {k: v for k, v in ENTRY.items() if k != "wrong"}})),
        ("Card x.field", lambda: read_cards({"x": ENTRY | {"more": ""}})),
        ("Card.id", lambda: Card("X y", **ENTRY)),
    ],
)
def test_bad_input_names_the_field(field, call):
    with pytest.raises(ValueError, match=re.escape(field)):
        call()


def test_a_derivation_answers_with_its_own_numbers():
    """Of a model whose theory is known, they are the theory's; what it does not know, it says."""
    small = eb.Model(name="small", layers=3, width=32, heads=4, vocabulary=331, positions=256)
    setup = eb.Setup(precision="bf16", batch=4, sequence=128)
    deck, theory = interview(eb.derive(small, setup, keep=False), "rtx-3060"), interview(small, "rtx-3060", setup)
    known = {name: deck.value(name)[0] for name in NUMBERS if not deck.value(name)[1]}
    assert {"peak", "peak_at", "rest", "after_forward", "free", "parameters", "batch"} <= known.keys()
    assert len(known) > 50
    by_peak = eb.fit(small, setup, "rtx-3060", headroom=eb.Headroom(fragmentation=22 * 2**20)).value
    assert known["largest_batch"] == eb.fit(small, setup, "rtx-3060").value < by_peak  # simulated
    assert known == {name: theory.value(name)[0] for name in known}
    for name, why in (
        ("block_activations", "a derivation of small knows whole steps"),
        ("moved", "a derivation of small knows whole steps"),
        ("lion_step", "small was derived with precision bf16, not fp32"),
        ("peak_full", "small was derived with checkpointing none, not full"),
        ("layers", "a derivation of small does not say its layers"),
    ):
        assert deck.value(name)[0] is None and why in deck.value(name)[1]
    assert "small was derived up to sequence 256" in deck.value("longest")[1]
    assert len(deck) == len(theory) and "(no number here)" in {deck.shown(name) for name in NUMBERS}
    with pytest.raises(ValueError, match="interview.of: a Setup is no model; allowed: .* or what eb.derive returns"):
        interview(setup)


def test_the_usual_deck_is_of_the_code_that_people_run_and_a_star_says_where_it_is_not():
    deck = interview()
    case = deck.case
    assert case.model.code == "transformers" and case.setup.precision == "bf16"
    for precision in ("fp32", "bf16-mixed", "bf16"):  # 12 bytes a logit, whatever the precision
        one = interview("llama-3.1-8b", setup=eb.Setup(batch=2, sequence=2048, precision=precision))
        timeline = eb.budget(one.case.model, one.case.one).timeline()
        more = max(timeline["loss"]) - one.value("loss_worst")[0]
        assert 0 <= more < 34 * 2**20  # eight bytes a token; under autocast also the head's input, cast
    own, shown = interview(eb.model("llama-3.1-8b", "reference"), setup=case.setup), deck.shown("peak_chunked")
    assert shown == own.shown("peak_chunked") + "*" and "*" not in own.shown("peak_chunked") + deck.shown("peak")
    starred = [card.id for card in deck.cards if deck.card(card.id).starred]
    assert "first-remedy" in starred and "estimate" not in starred
    assert "* of the book's own code" in repr(deck.card("first-remedy")) and "* of" not in repr(deck.card("estimate"))
    assert not any(deck.value(name)[1] for name in NUMBERS)
