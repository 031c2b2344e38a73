"""A table (Markdown) and a plot (SVG) of what kernels.bench measured."""

import matplotlib

OURS = "ours"


def _who(rows):
    return list(dict.fromkeys(row["who"] for row in rows))


def _dense_table(rows, title):
    names = _who(rows)
    lines = [
        f"### {title}",
        "",
        f"| head_dim, length, causal | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for key in dict.fromkeys((r["head_dim"], r["q_len"], r["causal"]) for r in rows):
        found = {r["who"]: r for r in rows if (r["head_dim"], r["q_len"], r["causal"]) == key}
        cells = [f"{found[n]['tflops']:.0f}" if "tflops" in found.get(n, {}) else "-" for n in names]
        lines.append(f"| {key[0]}, {key[1]}, {'yes' if key[2] else 'no'} | {' | '.join(cells)} |")
    return lines


def _decode_table(rows):
    names = _who(rows)
    head = f"| batch x context, q/kv heads | {' | '.join(names)} |"
    lines = ["### Decode, GB/s of K and V read: pages of 16 / 64", "", head, "|---" * (len(names) + 1) + "|"]
    for key in dict.fromkeys((r["batch"], r["context"], r["heads"], r["kv_heads"]) for r in rows):
        cells = []
        for name in names:
            found = [
                r
                for r in rows
                if r["who"] == name and (r["batch"], r["context"], r["heads"], r["kv_heads"]) == key
            ]
            cells.append(" / ".join(f"{r['gb_s']:.0f}" if "gb_s" in r else "-" for r in found) or "-")
        lines.append(f"| {key[0]} x {key[1]}, {key[2]}/{key[3]} | {' | '.join(cells)} |")
    return lines


def table(report):
    """The report as Markdown. What was refused or wrong is listed below the tables, with the reason."""
    card, ceilings = report["card"], report["ceilings"]
    lines = [
        f"# {card['name']}, {report['date']}",
        "",
        f"torch {report['versions']['torch']}, triton {report['versions']['triton']}, {report['dtype']}, "
        f"{report['tokens']} tokens a dense launch, {report['width']} wide, medians. Ceilings: copy "
        f"{ceilings['copy_gb_s']:.0f} GB/s (read and written), read {ceilings['read_gb_s']:.0f} GB/s, matrix product "
        f"{ceilings['matmul_tflops']:.0f} TFLOP/s. Written by `python -m kernels.bench`.",
    ]
    kinds = {
        what: [r for r in report["rows"] if r["what"] == what] for what in ("forward", "backward", "decode")
    }
    if kinds["forward"]:
        lines += [
            "",
            *_dense_table(kinds["forward"], "Forward, TFLOP/s (4 B H N^2 D, half of it when causal)"),
        ]
    if kinds["backward"]:
        lines += ["", *_dense_table(kinds["backward"], "Backward, TFLOP/s (2.5 times the count of forward)")]
    if kinds["decode"]:
        lines += ["", *_decode_table(kinds["decode"])]
    reasons = dict.fromkeys((r["what"], r["who"], r["why"]) for r in report["rows"] if "why" in r)
    lines += [""] * bool(reasons) + [f"- {what}, {who}: {why}" for what, who, why in reasons]
    return "\n".join(lines) + "\n"


def plot(report, path):
    """One panel a kind of work: a line of dots a problem, ours filled, the others by their marker."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    panels = []
    for what, unit, label in (
        ("forward", "tflops", "forward, TFLOP/s"), ("backward", "tflops", "backward, TFLOP/s"),
        ("decode", "gb_s", "decode, pages of 16, GB/s read"),
    ):  # fmt: skip
        rows = [r for r in report["rows"] if r["what"] == what and unit in r and r.get("page") in (None, 16)]
        if rows:
            panels.append((unit, label, rows))
    if not panels:
        return
    names = _who(report["rows"])
    look = {
        n: ("o", "#D55E00") if n == OURS else ("sD^vP*X<>"[i % 9], "#6B727C") for i, n in enumerate(names)
    }
    with plt.rc_context({"svg.hashsalt": "kernels.bench", "font.size": 9}):
        figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 5), squeeze=False)
        for axis, (unit, label, rows) in zip(axes[0], panels, strict=True):
            problems = list(dict.fromkeys(_problem(r) for r in rows))
            for name in _who(rows):
                own = [r for r in rows if r["who"] == name]
                marker, colour = look[name]
                axis.plot(
                    [r[unit] for r in own], [problems.index(_problem(r)) for r in own], marker, color=colour,
                    markerfacecolor=colour if name == OURS else "none", label=name, zorder=3 if name == OURS else 2,
                )  # fmt: skip
            axis.set(xlabel=label, yticks=range(len(problems)), yticklabels=problems, xlim=(0, None))
            axis.invert_yaxis()
            axis.grid(axis="x", alpha=0.3)
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)
        figure.suptitle(f"{report['card']['name']}, {report['date']}")
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _problem(row):
    if row["what"] == "decode":
        return f"{row['batch']} x {row['context']}, {row['heads']}/{row['kv_heads']}"
    return f"{row['head_dim']}, {row['q_len']}{', causal' if row['causal'] else ''}"
