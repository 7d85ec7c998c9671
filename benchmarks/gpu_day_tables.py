"""Render the results of `benchmarks.gpu_day` as the tables of docs/benchmarks.md. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]


def tables_of(results: Mapping[str, Result]) -> str:
    """Return Markdown: where and when, then a section for each step that has figures, and what has none."""
    lines, without = list[str](), list[str]()
    for title, prefix, render in SECTIONS:
        named = {name: result for name, result in results.items() if name.startswith(prefix)}
        found = [result for result in named.values() if result.get("found")]
        rows = [row for result in found for row in _safely(render, result["found"])]
        if rows:
            lines += [f"## {title}", "", _where(found[-1]), "", *_table(rows), ""]
        without += [
            f"- {name}: {_why(result)}"
            for name, result in named.items()
            if result not in found or result["state"] != "done"
        ]
    return "\n".join(
        [*lines, *(["## Steps without figures, or that failed", "", *without, ""] if without else [])]
    )


def _where(result: Result) -> str:
    machine = result["found"].get("machine", {}) if isinstance(result["found"], Mapping) else {}
    torch = f", torch {machine['torch']}" if "torch" in machine else ""
    tiny = " **Tiny sizes: a rehearsal, not a measurement.**" if result.get("quick") else ""
    return f"{result['date']}, {result['chip']}{torch}.{tiny}"


def _why(result: Result) -> str:
    if result.get("skipped"):
        return str(result["skipped"])
    last = str(result.get("tail", "")).strip().splitlines()[-1:]
    return f"{result.get('state', 'not read')}" + (f" ({last[0][:200]})" if last else "")


def _safely(render: Callable[[Any], Iterator[dict[str, str]]], found: Any) -> list[dict[str, str]]:
    """Return the rows, or none of figures in another form: a table that fails must not end the day."""
    try:
        return list(render(found))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    titles = list(dict.fromkeys(title for row in rows for title in row))
    head = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    return head + ["| " + " | ".join(row.get(title, "") for title in titles) + " |" for row in rows]


def _packs(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for table in found["tables"]:
        for name, row in table["variants"].items():
            if "failed" in row:
                figures = {"windows/s": str(row["failed"])}
            else:
                figures = {
                    "windows/s": f"{row['windows_per_second']:,.0f}",
                    "over plain torch": f"{row['ratio']:.2f}",
                    "TFLOP/s": f"{row['gflops'] / 1e3:.1f}",
                    "first losses differ by": f"{row['first_losses_differ_by']:.0e}",
                }
                if "kernel_share" in row:
                    figures["a kernel runs"] = f"{row['kernel_share']:.0%}"
            shape = f"{table['models']}, {table['hidden']}, {table['batch']:,}"
            yield {"models, hidden, batch": shape, "contender": name, **figures}


def _steps(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for row in found["rows"]:
        if "failed" in row:
            yield {"step": row["name"], "windows or chunks/s": str(row["failed"])}
            continue
        memory = row["memory_gib"]
        yield {
            "step": row["name"],
            "windows or chunks/s": f"{row['windows_per_second']:,.0f}",
            "ms": f"{row['step_ms']:.2f}",
            "TFLOP/s": f"{row['tflops']:.2f}",
            "of the peak": f"{row['peak_share']:.0%}",
            "bandwidth bound": f"{row['bound']:.0%}",
            "a kernel runs": "" if row["kernel_share"] is None else f"{row['kernel_share']:.0%}",
            "GiB, predicted": f"{row['predicted_gib']:.2f}",
            "GiB": "" if memory is None else f"{memory:.2f}",
        }


def _trial(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for row in found["timings"]:
        rate = row["excluded"] or f"{row['windows_per_second']:,.0f}"
        yield {
            "strategy": row["strategy"],
            "models": str(row["pack"]),
            "windows/s": rate,
            "GiB a model": f"{row['memory_per_model_gib']:.3f}",
        }


def _memory(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for row in found["rows"]:
        cells = {"shape": row["shape"]}
        for key, figure in row["figures"].items():
            if "ratio" in figure:
                cells[f"{key}, predicted"] = f"{figure['predicted_mib']:,.0f}"
                cells[key] = f"{figure['found_mib']:,.0f}"
                cells[f"{key}: ratio"] = f"{figure['ratio']:.2f}"
            else:
                cells[key] = f"{figure['found_mib']:,.0f}"
        yield cells


def _whole_run(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for symbols, made in found["symbols"].items():
        if not isinstance(made, Mapping):  # the seconds of an import
            continue
        for name, row in made.items():
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in row.get("phases", {}).items())
            figures = {"seconds": f"{row['wall']:.1f}", "CPU-seconds": f"{row['cpu']:.1f}", "phases": phases}
            yield {"symbols": symbols, "contender": name, **figures}


def _device_run(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    yield {
        "models": f"{found['symbols']} by {found['strategy']}",
        "windows": f"{found['windows']:,}",
        "seconds": f"{found['seconds']:.1f}",
        "of steps": f"{found['steps']:.1f}",
        "over its steps": f"{found['over']:.2f}",
        "trial over at": f"{found['tuned']:.1f}",
        "first steps told at": f"{found['first_steps']:.1f}",
        "a first epoch at": f"{found['first_epoch']:.1f}",
        "after the last epoch": f"{found['end']:.1f}",
    }


def _overheads(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    yield {"what": "rows to the device", "figure": f"{found['rows']['gb_per_second']} GB/s"}
    for row in found["gather"]:
        yield {
            "what": f"gather, batch {row['batch']}",
            "figure": f"{row['windows_per_second']:,.0f} windows/s",
        }
    for row in found["checkpoints"]:
        figure = f"copied in {row['copy_ms']} ms, written in {row['write_ms']} ms, steps {row['slower']:+.1%}"
        yield {"what": f"checkpoint of {row['name']}, {row['mb']} MB", "figure": figure}


def _bench(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for row in found["rows"]:
        memory = row["memory_gib"]
        yield {
            "chunks per step": f"{row['batch']:,}",
            "checkpointing": "on" if row["activation_checkpointing"] else "off",
            "it/s": row["excluded"] or f"{row['steps_per_second']:.2f}",
            "chunks/s": f"{row['chunks_per_second']:,.1f}",
            "memory": "-" if memory is None else f"{memory:.2f} GiB",
            "epoch": f"{row['epoch_seconds']:,.0f} s" if "epoch_seconds" in row else "-",
            "100 epochs": f"${row['usd']:.2f}" if "usd" in row else "-",
        }


def _ddp(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for ranks, table in found["ranks"].items():
        for name, row in table.items():
            if name == "losses":
                continue
            rate, beside = row["windows_per_second"], row["ours_is"]
            yield {
                "ranks": ranks,
                "contender": name,
                "windows/s": row["failed"] or f"{rate:,.0f}",
                "ours over it": "" if beside is None else f"{beside:.2f}",
            }


def _smoke(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    yield {"device": str(found["device"]), "works": str(found["ok"]), "seconds": f"{found['seconds']:.1f}"}


SECTIONS: tuple[tuple[str, str, Callable[[Any], Iterator[dict[str, str]]]], ...] = (
    ("The smoke test", "smoke", _smoke),
    ("The trial of 20 LSTMs", "trial", _trial),
    ("Steps", "steps", _steps),
    ("Many small models: packs", "packs", _packs),
    ("Memory of a step, MiB", "memory", _memory),
    ("A whole training, over its steps", "device_run", _device_run),
    ("A whole training on the cores, by phase", "whole_run", _whole_run),
    ("Beside the steps", "overheads", _overheads),
    ("The cost of a TCN, by batch", "bench", _bench),
    ("One model on several devices", "ddp", _ddp),
    ("The tests", "tests", lambda found: iter(())),
)
