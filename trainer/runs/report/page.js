// A run's report: draws the JSON of the element `data`. Every text of it goes through textContent.
"use strict";
(() => {
  const { el, known, whole, counted, money, between, percent, minute, bytes, duration, list, table, more, folded, browser } = elements;
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.querySelector("main");
  const LINES = 10, SHOWN_GAINS = 30;
  const MARKS = { better: ["✓", "good"], "too little to tell": ["?", "odd"], "no different": ["–", "dim"], worse: ["✗", "bad"] };

  function section(title, draw, kind) {
    const made = el("section", { kind: kind || "" }, title && el("h2", {}, title));
    main.append(made);
    try {
      if (draw(made) === false) made.remove();
    } catch (error) {
      made.append(el("p", { kind: "bad" }, "This part can't be drawn."));
      console.warn(error);
    }
  }

  // --- verdict, asked and answered ---
  function head(into) {
    const { run, seconds, dollars, models, failed, files, values } = data;
    const tone = run.state === "done" ? "good" : run.state === "stopped" ? "odd" : "bad";
    into.append(el("h1", {}, run.run_id, " ", el("span", { kind: `mark ${tone}` }, run.state)));
    if (data.verdict) into.append(el("p", { kind: "verdict" }, data.verdict));
    if (data.error) {
      const why = data.error.why ? ` (${data.error.why})` : "";
      into.append(el("p", { kind: "error" }, `${data.error.what}${why}. ${data.error.do || ""}`));
    }
    const facts = [];
    if (run.work === "train") facts.push([counted(models.total, "model"), failed.total ? `${whole(failed.total)} failed` : "made", failed.total ? "bad" : ""]);
    if (values.total > 1) {
      const tried = values.rows[0].study, done = values.done ?? values.rows.filter((one) => one.done && (one.end || "done") === "done").length; // an older page has no count
      facts.push(tried ? [counted(values.total, "trial"), `${whole(done)} to the end`, ""] : [`${whole(done)} of ${whole(values.total)}`, "values done", ""]);
    }
    if (files.total) facts.push([counted(files.total, "file"), "", ""]);
    facts.push([duration(seconds.total), "in all", ""]);
    const estimate = dollars.estimated ? `spent, ${money(dollars.estimated)} estimated` : "spent";
    facts.push(run.host ? ["no cost", `on ${run.host}`, ""] : [between(dollars.spent_low, dollars.spent_high), estimate, ""]);
    const lost = data.attempts.filter((one) => one.cause).length;
    if (lost) facts.push([counted(data.attempts.length, "attempt"), `${lost} lost`, "odd"]);
    into.append(el("ul", { kind: "facts" }, ...facts.map(([one, other, tone]) => el("li", { kind: tone }, el("b", {}, one), " ", other))));
    if (run.note) into.append(el("p", {}, run.note));
    return true;
  }
  function answers() {
    const { run, seconds, dollars, read } = data;
    const rows = [["state", `${run.state}, exit code ${run.exit_code}`]];
    if (known(read.bars) && read.bars) {
      rows.push(["bars", `${whole(read.bars)} (${read.synthetic ? "synthetic" : "real"}), ${counted(read.holes || 0, "hole")}`]);
    }
    rows.push(["begun", `${minute(run.created_at)} UTC`], ["closed", `${minute(run.closed_at)} UTC`], ["time", duration(seconds.total)]);
    if (!run.host) {
      const saved = dollars.spot_saved_high ? `; spot saved ${between(Math.max(0, dollars.spot_saved_low), dollars.spot_saved_high)}` : "";
      rows.push(["dollars", `${between(dollars.spent_low, dollars.spent_high)}${saved}`]);
    }
    for (const one of data.instances.slice(-3)) {
      rows.push(["machine", `${one.instance_type} ${one.market.replace("_", "-")}, ${one.availability_zone}: ${one.state}`]);
    }
    if (data.left && data.left.length) rows.push(["left over", data.left.map((one) => `${one.kind} ${one.id}`).join(", ")]);
    return rows;
  }

  // --- models ---
  const rows = data.models.rows;
  let chosen = rows[0] || null, showDetails = () => {};
  const decided = new Map((data.gate || []).map((one) => [one.piece, one]));
  const label = (row) => row.piece;
  function mark(row) {
    const [sign, tone] = MARKS[row.mark] || ["", ""];
    return el("span", { kind: tone, title: row.mark }, sign, el("span", { kind: "less" }, ` ${row.mark}`));
  }
  function scored([ours, theirs], baseline) {
    if (!known(theirs)) return charts.score(ours);
    return el("span", { title: baseline }, `${charts.score(ours)} (${charts.score(theirs)}`, el("span", { kind: "rare" }, ` ${baseline}`), ")");
  }
  function modelColumns() {
    const any = (test) => rows.some(test);
    const title = data.models.headlines.length === 1 ? data.models.headlines[0] : "score";
    return [
      { title: "model", of: label, key: (row) => row.piece, name: true },
      { title: "mark", of: mark, key: (row) => Object.keys(MARKS).indexOf(row.mark) },
      any((row) => known(row.gain[0])) && { title: "gain", beside: "[95 %]", of: gain, key: (row) => row.gain[0], number: true },
      { title, beside: "(baseline)", of: (row) => scored(row.score, row.baseline), key: (row) => row.score[0], number: true },
      !decided.size && any((row) => row.production) && { title: "production", of: (row) => row.production ? charts.score(row.production.score) : "–", key: (row) => row.production && row.production.score, number: true, less: true },
      any((row) => decided.has(row.piece)) && { title: "over production", of: (row) => gain(decided.get(row.piece) || { gain: [] }), key: (row) => (decided.get(row.piece) || { gain: [] }).gain[0], number: true, less: true },
      any((row) => decided.has(row.piece)) && { title: "gate", of: (row) => decided.has(row.piece) ? gate(decided.get(row.piece)) : "–", key: (row) => decided.has(row.piece) && decided.get(row.piece).promote ? 0 : 1 },
      any((row) => row.traded) && { title: "if traded", beside: "(buy and hold)", of: traded, key: (row) => row.traded && row.traded.net, number: true, less: true },
      !decided.size && any((row) => row.traded) && { title: "deflated Sharpe", of: (row) => row.traded ? charts.chance(row.traded.deflated) : "–", key: (row) => row.traded && row.traded.deflated, number: true, less: true, rare: true },
      !decided.size && { title: "bars (cells)", of: (row) => known(row.bars) ? `${whole(row.bars)} (${row.cells[0] ?? "–"})` : "–", key: (row) => row.bars, number: true, less: true, rare: true },
      any((row) => row.fold !== rows[0].fold) && { title: "fold", of: (row) => String(row.fold), key: (row) => row.fold, number: true, less: true },
      any((row) => row.seed !== rows[0].seed) && { title: "seed", of: (row) => String(row.seed), key: (row) => row.seed, number: true, less: true },
    ].filter(Boolean);
  }
  const signed = (value) => `${value > 0 ? "+" : ""}${charts.score(value)}`;
  function gain(row) {
    const [value, low, high] = row.gain;
    if (!known(value)) return "–";
    const interval = known(low) ? el("span", { kind: "rare" }, ` [${signed(low)}, ${signed(high)}]`) : "";
    return el("span", {}, signed(value), interval);
  }
  const traded = (row) => row.traded ? el("span", {}, percent(row.traded.net), el("span", { kind: "rare" }, ` (${percent(row.traded.hold)})`)) : "–";
  const gate = ({ promote, reason }) => el("span", { kind: promote ? "good" : "dim", title: reason }, promote ? "✓ promoted" : "not promoted");
  function drawModels(into) {
    if (!rows.length) return false;
    const words = (row) => [row.piece, row.family, row.target, row.mark, ...row.series].join(" ");
    const made = browser(modelColumns(), rows, { words, chosen: () => chosen, pick: (row) => { chosen = row; made.draw(); showDetails(true); } });
    const meanings = Object.entries(data.models.meanings || {}).filter(([name]) => MARKS[name] && rows.some((row) => row.mark === name));
    into.append(made.made, ...meanings.map(([name, meaning]) => el("p", { kind: "note" }, el("span", { kind: MARKS[name][1] }, `${MARKS[name][0]} ${name}`), `: ${meaning}`)));
    const known_ = rows.filter((row) => known(row.gain[0]));
    if (rows.some((row) => known(row.score[1]))) into.append(el("p", { kind: "note" }, `beside the ${data.models.headlines[0] || "score"}: that of the hardest baseline`));
    if (decided.size) into.append(el("p", { kind: "note" }, "over production: the gate's gain over the model in production, both scored on the same bars"));
    else if (rows.some((row) => row.production)) into.append(el("p", { kind: "note" }, "production: the score of the model in production on its own test span, which is no comparison"));
    if (data.models.total > rows.length) into.append(el("p", {}, `The first ${whole(rows.length)} of ${whole(data.models.total)}; the receipt has all.`));
    if (known_.length) {
      const shown = known_.slice(0, SHOWN_GAINS);
      const rest = known_.length > shown.length ? `, the first ${SHOWN_GAINS} of ${whole(known_.length)}` : "";
      into.append(el("h3", {}, `Gain over the hardest baseline, with its 95 % interval${rest}`), charts.gains(shown));
    }
    return true;
  }

  // --- curves ---
  const curves = data.curves ? data.curves.pieces : [];
  const titles = [...new Set(curves.flatMap((one) => Object.keys(one.series)))];
  function joined(pieces, title) {
    const tables = pieces.map((one) => [one.x, one.series[title]]);
    const [x, ...values] = tables.length > 1 ? uPlot.join(tables) : tables[0];
    return { x, series: pieces.map((one, place) => ({ label: one.piece, values: values[place], place })) };
  }
  function spread(pieces, title) {
    const at = new Map();
    for (const one of pieces) one.x.forEach((x, place) => {
      const value = one.series[title][place];
      if (known(value)) (at.get(x) || at.set(x, []).get(x)).push(value);
    });
    const x = [...at.keys()].sort((one, other) => one - other);
    const sorted = x.map((one) => at.get(one).sort((a, b) => a - b));
    const share = (part) => sorted.map((values) => values[Math.round(part * (values.length - 1))]);
    return {
      x, bands: [[2, 0]],
      series: [
        { label: "a tenth is below", values: share(.1), place: 0, width: 1, faint: true },
        { label: "median", values: share(.5), place: 0, width: 2.4 },
        { label: "a tenth is above", values: share(.9), place: 0, width: 1, faint: true },
      ],
    };
  }
  function drawCurves(into) {
    if (!curves.length) {
      if (data.missing.curves) into.append(el("p", {}, data.missing.curves));
      return Boolean(data.missing.curves);
    }
    const choice = el("select", { "aria-label": "curve" }, ...titles.map((title) => el("option", { value: title }, title)));
    const box = el("div", { kind: "chart-box" });
    let chart = null;
    function draw() {
      const title = choice.value, pieces = curves.filter((one) => one.series[title]);
      const shape = pieces.length > LINES ? spread(pieces, title) : joined(pieces, title);
      charts.forget(chart);
      chart = charts.lines(box, { ...shape, xLabel: pieces[0].along, height: 280 });
    }
    const words = curves.length > LINES ? `of ${counted(curves.length, rows.length ? "model" : "value")}: the middle, and where eight of ten lie` : "";
    into.append(el("div", { kind: "bar-row" }, choice, words), box);
    choice.addEventListener("change", draw);
    draw();
    if (data.curves.left_out) into.append(el("p", {}, `without ${counted(data.curves.left_out, rows.length ? "model" : "value")} more; mayfly pull has all curves`));
    return true;
  }

  // --- one model ---
  function lossOf(row, into) {
    const one = curves.find((curve) => curve.piece === row.piece);
    if (!one) return null;
    const names = ["training loss", "validation loss", "loss"].filter((name) => one.series[name]);
    const series = (names.length ? names : titles.filter((name) => one.series[name]).slice(0, 1)).map((name, place) => ({ label: name, values: one.series[name], place }));
    return charts.lines(into, { x: one.x, series, xLabel: one.along, height: 220 });
  }
  const share = (value) => known(value) ? `${Number((100 * value).toPrecision(3))} %` : "–";
  function equityOf(row, into) {
    const series = [{ label: "made after costs", values: row.equity.made, place: 0 }];
    return charts.lines(into, { x: row.equity.at, series, time: true, yFormat: share, height: 220 });
  }
  function scoresOf(row) {
    const { baselines, rows: scores } = row.scores;
    const columns = [
      { title: "score", of: (one) => one.title },
      { title: "test", number: true, of: (one) => charts.score(one.test) },
      { title: "[95 %]", number: true, less: true, of: (one) => one.interval ? one.interval.map(charts.score).join(" to ") : "–" },
      { title: "validation", number: true, less: true, of: (one) => charts.score(one.validation) },
      ...baselines.map((title, place) => ({ title, number: true, of: (one) => charts.score(one.baselines[place]) })),
    ];
    return table(columns, scores);
  }
  function facts(row) {
    const { traded, production, gain: [value, low, high] } = row;
    const told = row.mark ? [["mark", el("span", { kind: (MARKS[row.mark] || ["", ""])[1] }, row.mark)]] : [];
    if (known(value)) told.push(["gain", `${signed(value)} over ${row.baseline}${known(low) ? `, 95 % interval ${signed(low)} to ${signed(high)}` : ""}`]);
    if (known(row.bars)) told.push(["test", `${whole(row.bars)} bars${row.span[0] ? `, ${row.span[0]} to ${row.span[1]}` : ""}; ${row.cells[0] ?? "–"} cells${row.cells[1] ? ` of ${whole(row.cells[1])} needed` : ""}`]);
    if (production) told.push(["production", `${production.name}: ${charts.score(production.score)} on its own test span${production.span[0] ? `, ${production.span[0]} to ${production.span[1]}` : ""}`]);
    const verdict = decided.get(row.piece);
    if (verdict) told.push(["gate", `${verdict.promote ? "promoted to" : "does not replace"} ${verdict.name}: ${verdict.reason}`]);
    if (traded) {
      const even = known(traded.even) ? `breaks even at costs of ${(100 * traded.even).toFixed(3)} %` : "never breaks even";
      told.push(["if traded", `${percent(traded.net)} after costs; buy and hold ${percent(traded.hold)}; ${even}${known(traded.deflated) ? `; deflated Sharpe ${charts.chance(traded.deflated)}` : ""}`]);
    }
    told.push(["symbols", row.series.join(", ") + (row.more_series ? ` and ${whole(row.more_series)} more` : "")]);
    told.push(["object", el("code", {}, row.key)], ["version", el("code", {}, row.version_id)], ["sha256", el("code", {}, row.sha256)]);
    return list(told);
  }
  function drawModel(into) {
    if (!rows.length) return false;
    const choice = el("select", { "aria-label": "model" }, ...rows.map((row, place) => el("option", { value: place }, label(row))));
    const body = el("div", {});
    let made = [];
    showDetails = (scroll) => {
      choice.value = String(rows.indexOf(chosen));
      made.forEach(charts.forget);
      made = [];
      const plots = el("div", { kind: "plots" });
      body.replaceChildren(facts(chosen), chosen.scores.rows.length ? scoresOf(chosen) : "", plots);
      const plot = (title, draw) => {
        const box = el("div", { kind: "chart-box" }), around = el("div", { kind: "plot" }, el("h3", {}, title), box);
        plots.append(around);
        const chart = draw(box);
        if (chart) made.push(chart); else around.remove();
      };
      plot("Loss", (box) => lossOf(chosen, box));
      if (chosen.equity) plot("Equity over the test span", (box) => equityOf(chosen, box));
      for (const [event, its] of Object.entries(chosen.reliability || {})) {
        plots.append(el("div", { kind: "plot" }, el("h3", {}, `Calibration: ${event}`), charts.calibration(its)));
      }
      if (scroll) into.scrollIntoView({ block: "start", behavior: "auto" });
    };
    choice.addEventListener("change", () => { chosen = rows[Number(choice.value)]; showDetails(false); });
    if (rows.length > 1) into.append(el("div", { kind: "bar-row" }, choice));
    into.append(body);
    showDetails(false);
    if (data.missing.cards) into.append(el("p", {}, data.missing.cards));
    return true;
  }
  function drawEquity(into) {
    const all = rows.filter((row) => row.equity), traded = all.slice(0, LINES);
    if (traded.length < 2) return false;
    const begins = traded.map((row) => row.equity.at[0]), ends = traded.map((row) => row.equity.at[row.equity.at.length - 1]);
    const longest = Math.max(...ends.map((end, place) => end - begins[place]));
    const apart = Math.max(...ends) - Math.min(...begins) > 2 * longest; // spans of other years: over the days of each
    const [x, ...values] = uPlot.join(traded.map(({ equity: { at, made } }) => [apart ? at.map((one) => (one - at[0]) / 86400) : at, made]));
    const box = el("div", { kind: "chart-box" });
    into.append(box);
    charts.lines(box, { x, time: !apart, xLabel: apart ? "days of each model's own test span" : "", xName: apart && "day", yFormat: share, height: 260, series: traded.map((row, place) => ({ label: row.piece, values: values[place], place })) });
    const rule = data.models.rule ? `Rule: ${data.models.rule}. ` : "";
    const first = all.length > LINES ? `The first ${LINES} models. ` : "";
    into.append(el("p", {}, `${first}${rule}Sums over the test span after costs, as a share of the money; nothing is compounded.`));
    return true;
  }

  // --- values of a script, or trials of a search ---
  function drawValues(into) {
    const { rows: values } = data.values;
    if (!values.length) return false;
    const names = [...new Set(values.flatMap((one) => Object.keys(one.values)))].slice(0, 12), score = values[0].metric || "best";
    const studies = [...new Set(values.map((one) => one.study))], ends = (one) => one.end || `exit code ${one.exit_code}`;
    for (const study of studies.slice(0, 4)) {
      const its = values.filter((one) => one.study === study), scored = its.filter((one) => known(one.best));
      if (scored.length < 2 || !names.length) continue;
      into.append(studies.length > 1 ? el("h3", {}, study) : "", charts.parallel(its, names, score));
    }
    const columns = [
      { title: studies[0] ? "trial" : "value", of: (one) => one.piece, key: (one) => one.piece, name: true },
      { title: "end", of: (one) => one.done && (one.end || "done") === "done" ? el("span", { kind: "good" }, "✓ done") : el("span", { kind: one.end ? "dim" : "bad" }, `${one.end ? "–" : "✗"} ${ends(one)}`), key: (one) => one.done ? one.end || "" : "~" },
      { title: score, of: (one) => charts.short(one.best), key: (one) => one.best, number: true },
      ...names.map((title) => ({ title, of: (one) => one.values[title] ?? "–", number: !values.some((one) => isNaN(one.values[title] ?? 0)), key: (one) => isNaN(one.values[title]) ? one.values[title] : Number(one.values[title]) })),
      studies[0] ? { title: values[0].length, of: (one) => whole(one.epochs), key: (one) => one.epochs, number: true, less: true } : { title: "time", of: (one) => duration(one.seconds), key: (one) => one.seconds, number: true, less: true },
    ];
    const words = (one) => [one.piece, ...Object.values(one.values)].join(" ");
    into.append(browser(columns, values, { words }).made, more(data.values, studies[0] ? "trials" : "values") || "");
    return true;
  }

  // --- times ---
  const iso = (seconds) => new Date(seconds * 1e3).toISOString();
  function drawTimes(into) {
    const { lanes } = data;
    const all = lanes.flatMap((lane) => lane.segments);
    if (!all.length) return false;
    const begin = Math.min(...all.map((one) => one[1])), span = Math.max(...all.map((one) => one[2])) - begin || 1;
    into.append(el("p", {}, `${minute(iso(begin))} to ${minute(iso(begin + span))} UTC`));
    for (const lane of lanes) {
      const track = el("div", { kind: "track" });
      for (const [phase, from, to] of lane.segments) {
        const bar = el("span", { kind: `p-${phase}`, title: `${phase} ${duration(to - from)}` });
        bar.style.left = `${100 * (from - begin) / span}%`;
        bar.style.width = `${100 * (to - from) / span}%`;
        track.append(bar);
      }
      into.append(el("div", { kind: "lane" }, el("span", {}, lane.title), track, lane.why ? el("span", { kind: "why" }, lane.lost ? `lost its machine: ${lane.why}` : lane.why) : ""));
    }
    if (data.lanes_left_out) into.append(el("p", {}, `without ${whole(data.lanes_left_out)} lanes before these; mayfly status --events has all that happened`));
    const phases = Object.entries(data.seconds).filter(([phase, seconds]) => phase !== "total" && seconds > 0);
    into.append(el("div", { kind: "key" }, ...phases.map(([phase, seconds]) => el("span", {}, el("i", { kind: `p-${phase}` }), `${phase} ${duration(seconds)}`))));
    if (data.attempts.length > 1) {
      into.append(table([
        { title: "attempt", of: (one) => String(one.number) },
        { title: "machines", less: true, of: (one) => one.instances.join(", ") || "–" },
        { title: "time", number: true, of: (one) => duration(one.seconds_high) },
        { title: "spent", number: true, of: (one) => between(one.spent_low, one.spent_high) },
        { title: "end", name: true, of: (one) => one.error ? one.error.what : "the run's" },
      ], data.attempts));
      if (data.steps_twice) into.append(el("p", {}, `${counted(data.steps_twice, "step")} computed twice, by the machines' reports`));
    }
    if (data.missing.reports) into.append(el("p", {}, data.missing.reports));
    const { rows: events, total } = data.events;
    into.append(folded(`All that happened: ${counted(total, "event")}${total > events.length ? `, the last ${whole(events.length)}` : ""}`, table([
      { title: "at (UTC)", of: (one) => minute(one[0]) }, { title: "attempt", of: (one) => one[1] ? String(one[1]) : "" }, { title: "by", of: (one) => one[2] },
      { title: "event", of: (one) => one[3], name: true }, { title: "reason", of: (one) => one[4], name: true },
    ], events)));
    return true;
  }
  function drawUse(into) {
    if (!data.curves) return false;
    const { throughput, gpus, begin, bucket_seconds: width, gpu_memory_mib: memory } = data.curves;
    const at = (bucket) => begin + (bucket + .5) * width;
    const plots = el("div", { kind: "plots" });
    into.append(plots);
    const plot = (title, chart) => {
      const box = el("div", { kind: "chart-box" });
      plots.append(el("div", { kind: "plot" }, el("h3", {}, title), box));
      charts.lines(box, { ...charts.broken(chart), time: true, gaps: true, height: 200 });
    };
    if (throughput.buckets.length) {
      plot(`Throughput, ${throughput.unit} a second`, { x: throughput.buckets.map(at), series: [{ label: `${throughput.unit}/s`, values: throughput.rates, place: 0 }] });
    }
    const figures = [["use", "GPU use, %", 1], ["memory", `GPU memory, GiB${memory ? ` of ${charts.short(memory / 1024)}` : ""}`, 1024], ["power", "Power, W", 1]];
    for (const [key, title, unit] of figures) {
      const its = gpus.filter((one) => one[key]);
      if (!its.length) continue;
      const [buckets, ...values] = its.length > 1 ? uPlot.join(its.map((one) => [one.buckets, one[key]])) : [its[0].buckets, its[0][key]];
      const scaled = values.map((column) => column.map((one) => known(one) ? one / unit : undefined));
      const shape = its.length > LINES ? charts.overall(scaled) : scaled.map((column, place) => ({ label: its[place].name, values: column, place }));
      plot(title, { x: buckets.map(at), series: shape });
    }
    if (!plots.children.length) return false;
    if (!gpus.length) into.append(el("p", {}, "No GPU reported its use."));
    return true;
  }

  // --- predicted and actual ---
  function drawPlan(into) {
    const { predicted, seconds, dollars, run } = data;
    const actual = { ...seconds, upload: seconds.upload + seconds.terminate };
    const phases = ["boot", "stage", "train", "upload"].filter((phase) => known(predicted[phase]));
    const made = phases.map((phase) => [phase === "upload" ? "upload and end" : phase, duration(predicted[phase]), duration(actual[phase]), ratio(actual[phase], predicted[phase])]);
    if (phases.length) {
      const [plan, took] = [predicted, actual].map((one) => phases.reduce((sum, phase) => sum + one[phase], 0));
      made.push(["all of these", duration(plan), duration(took), ratio(took, plan)]);
    }
    if (dollars.estimated && !run.host) {
      made.push(["dollars", money(dollars.estimated), between(dollars.spent_low, dollars.spent_high), ratio(dollars.spent_high, dollars.estimated)]);
    }
    if (!made.length) return false;
    into.append(table(["", "predicted", "actual", "ratio"].map((title, place) => ({ title, number: place > 0, of: (row) => row[place] })), made));
    if (predicted.slow) into.append(el("p", {}, `Nine of ten runs were expected to take less than ${duration(predicted.slow)}.`));
    return true;
  }
  const ratio = (actual, predicted) => predicted > 0 ? `${(actual / predicted).toFixed(2)} x` : "–";

  section("", head, "head");
  section("Asked and answered", (into) => into.append(el("div", { kind: "pair" }, el("div", {}, el("h3", {}, "Asked"), list(data.asked)), el("div", {}, el("h3", {}, "Answered"), list(answers())))));
  section("Models", drawModels, "long");
  const ofDecisions = [{ title: "model", of: (one) => one.piece, name: true }, { title: "in production", of: (one) => one.name, name: true }, { title: "gate", of: gate }, { title: "over production", beside: "[95 %]", of: gain, number: true }, { title: "reason", of: (one) => one.reason, name: true }];
  section("Decided", (into) => rows.length || !decided.size ? false : into.append(table(ofDecisions, data.gate)), "long"); // by a score run, whose models are another run's
  section(data.values.total && data.values.rows[0].study ? "Search" : "Values", drawValues, "long");
  section(curves.some((one) => one.along === "epoch") || !curves.length ? "Learning curves" : "Curves", drawCurves);
  section("Equity", drawEquity);
  section("One model", drawModel, "long");
  section("Failed", (into) => {
    if (!data.failed.total && !data.left_out.total) return false;
    if (data.failed.total) into.append(table([{ title: "piece", of: (one) => one[0], name: true }, { title: "reason", of: (one) => one[1], name: true }], data.failed.rows), more(data.failed, "failures") || "");
    if (data.left_out.total) into.append(el("h3", {}, "Left out"), el("ul", {}, ...data.left_out.rows.map((one) => el("li", {}, one))), more(data.left_out, "symbols") || "");
    return true;
  }, "long");
  section("Times", drawTimes, "long");
  section("Machine", drawUse);
  section("Predicted and actual", drawPlan);
  section("Files", (into) => {
    if (!data.files.total) return false;
    into.append(table([{ title: "file", of: (one) => one[0], name: true }, { title: "size", number: true, of: (one) => bytes(one[1]) }], data.files.rows), more(data.files, "files") || "");
    return true;
  }, "long");
  section("Lineage", (into) => into.append(list(data.lineage.map(([name, value]) => [name, el("code", {}, value)])), folded("All settings of the job", list(data.settings.map(([name, value]) => [name, value || "–"])))), "long lineage");
})();
