// Charts of a run's report: lines over epochs or time by uPlot, bars of gains and calibration as SVG.
// Texts go through textContent or createTextNode only.
"use strict";
const charts = (() => {
  const COLOURS = ["#3b6ea8", "#c0562c", "#23784a", "#7a4fb3", "#a86a00", "#b83280", "#127a86", "#68727c"];
  const DARK = ["#7db0e8", "#f09a6f", "#63c48d", "#bd9cf0", "#e5b04f", "#f08bc0", "#5cc5d1", "#97a1ab"];
  const SVG = "http://www.w3.org/2000/svg";
  const WHOLE = [1, 2, 5].flatMap((one) => [...Array(12).keys()].map((power) => one * 10 ** power)).sort((one, other) => one - other);
  const SPANS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, ...[1, 2, 3, 7, 14, 30, 91, 182, 365, 730].map((days) => 86400 * days)];
  const drawn = new Set();
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const root = document.documentElement, printing = () => root.classList.contains("printing"); // on white paper
  const colour = (place) => (dark.matches && !printing() ? DARK : COLOURS)[place % COLOURS.length];
  const themed = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function short(value) {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  }

  // A number with four decimals, as in the receipt's tables; a chance below 0.01 is one.
  const score = (value) => known(value) && Math.abs(value) < 1000 && Math.abs(value) >= 5e-5 ? value.toFixed(4) : short(value);
  const chance = (value) => known(value) && value < .01 ? "< 0.01" : known(value) && value > .99 ? "> 0.99" : known(value) ? value.toFixed(2) : "–";
  const known = (value) => value !== null && value !== undefined;
  const iso = (seconds) => new Date(seconds * 1e3).toISOString();
  function instants(_, splits) {
    const step = splits.length > 1 ? splits[1] - splits[0] : 86400, all = splits[splits.length - 1] - splits[0];
    const [from, to] = step >= 86400 ? [0, 10] : all > 86400 ? [5, 16] : [11, step < 60 ? 19 : 16];
    return splits.map((one) => iso(one).slice(from, to).replace("T", " "));
  }

  function axis(label, format, extra) {
    return {
      stroke: () => themed("--dim"), label, labelSize: label ? 18 : 0, labelFont: "12px system-ui", font: "11px system-ui",
      grid: { stroke: () => themed("--line"), width: 1 }, ticks: { stroke: () => themed("--line"), width: 1 },
      values: format ? (_, splits) => splits.map(format) : undefined, ...extra,
    };
  }

  // Draw lines. `series`: [{label, values, place (of its colour), width, faint}]; `bands`: pairs of places in it.
  // `xName`: of x in the legend. Missing values are spanned, unless `gaps`: there null is a gap, undefined none.
  function lines(into, { x, series, bands, xLabel, xName, time, yFormat, gaps, height }) {
    const make = () => new uPlot({
      width: Math.max(240, into.clientWidth), height: height || 240, padding: [null, time ? 32 : null, null, null],
      scales: { x: { time: Boolean(time), range: (_, from, to) => from === to && known(from) ? [from - 60, to + 60] : [from, to] } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      cursor: { drag: { x: true, y: false }, points: { size: 5 } },
      legend: { show: series.length <= 12, markers: { width: 2 } },
      axes: [
        axis(xLabel, short, time ? { space: 74, values: instants, incrs: SPANS } : { space: 50, incrs: WHOLE }),
        axis("", yFormat || short, { size: 62 }),
      ],
      bands: (bands || []).map((pair) => ({ series: pair.map((one) => one + 1), fill: `${colour(0)}26` })),
      series: [
        { label: xName || xLabel || "time", value: (_, value) => !known(value) ? "" : time ? iso(value).slice(0, 19).replace("T", " ") : short(value) },
        ...series.map((one) => ({
          label: one.label, stroke: () => colour(one.place) + (one.faint ? "99" : ""), width: one.width || 1.6,
          spanGaps: !gaps, points: { show: x.length < 2, size: 5 },
          value: (_, value) => known(value) ? (yFormat || short)(value) : "",
        })),
      ],
    }, [x, ...series.map((one) => one.values)], into);
    const chart = { into, plot: make(), redraw() { chart.plot.destroy(); chart.plot = make(); } };
    chart.sized = new ResizeObserver(() => {
      const width = Math.max(240, into.clientWidth);
      if (width !== chart.plot.width) chart.plot.setSize({ width, height: chart.plot.height });
    });
    chart.sized.observe(into);
    drawn.add(chart);
    return chart;
  }

  function forget(chart) {
    if (!chart) return;
    chart.sized.disconnect();
    chart.plot.destroy();
    drawn.delete(chart);
  }

  function redraw() { drawn.forEach((chart) => chart.redraw()); }
  dark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => { root.classList.add("printing"); redraw(); });
  addEventListener("afterprint", () => { root.classList.remove("printing"); redraw(); });
  function shape(name, attributes, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function part(name, kind, place) {
    const made = document.createElement(name);
    made.className = kind;
    for (const [key, value] of Object.entries(place || {})) made.style[key] = value;
    return made;
  }

  // Draw gains with their intervals, one row each; zero is the baseline.
  function gains(rows) {
    const known = rows.filter((row) => row.gain[0] !== null);
    const ends = known.flatMap((row) => row.gain.filter((one) => one !== null)).concat(0);
    const low = Math.min(...ends), span = Math.max(...ends) - low || 1;
    const at = (value) => 2 + 96 * (value - low) / span;
    const made = part("div", "gains");
    for (const row of known) {
      const [gain, least, most] = row.gain;
      const tone = row.mark === "better" ? "good" : row.mark === "worse" ? "bad" : "";
      const track = part("div", "track");
      track.append(part("span", "zero", { left: `${at(0)}%` }));
      if (least !== null) {
        track.append(part("span", `span ${tone}`, { left: `${at(least)}%`, width: `${at(most) - at(least)}%` }));
      }
      track.append(part("span", `dot ${tone}`, { left: `${at(gain)}%` }));
      const [name, value] = [part("span", "name"), part("span", "value")];
      name.textContent = row.piece;
      value.textContent = (gain > 0 ? "+" : "") + score(gain);
      const line = part("div", "gain");
      line.append(name, track, value);
      made.append(line);
    }
    return made;
  }

  // Draw how often an event happened by the probability that was forecast; reliable is the diagonal.
  function calibration(table) {
    const made = shape("svg", { viewBox: "-34 -8 280 270", class: "calibration", role: "img" });
    const values = [...table.forecast, ...table.happened, ...table.low, ...table.high].filter((one) => one !== null);
    const low = Math.max(0, Math.min(...values) - .02), high = Math.min(1, Math.max(...values) + .02), span = high - low || 1;
    const x = (value) => 230 * (value - low) / span, y = (value) => 230 - x(value);
    made.append(shape("path", { class: "frame", d: "M0 0V230H230" }), shape("path", { class: "zero", d: "M0 230L230 0" }));
    table.forecast.forEach((forecast, place) => {
      const ends = [table.low[place], table.high[place]];
      if (ends[0] !== null) made.append(shape("path", { class: "span", d: `M${x(forecast)} ${y(ends[0])}V${y(ends[1])}` }));
      made.append(shape("circle", { cx: x(forecast), cy: y(table.happened[place]), r: 4 }));
    });
    for (const value of [low, high]) {
      made.append(
        shape("text", { x: x(value), y: 245, "text-anchor": "middle" }, value.toFixed(2)),
        shape("text", { x: -5, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2)),
      );
    }
    made.append(shape("text", { x: 115, y: 260, "text-anchor": "middle" }, "forecast; up: how often it happened"));
    return made;
  }

  // Draw what was tried as lines across an axis for each of `names`, and one for `score`; the best is on top.
  function parallel(rows, names, score) {
    const WIDTH = 900, HEIGHT = 260, step = WIDTH / names.length;
    const made = shape("svg", { viewBox: `-70 -26 ${WIDTH + 140} ${HEIGHT + 64}`, class: "parallel", role: "img" });
    const of = (row, name) => name === score ? row.best : isNaN(row.values[name]) ? row.values[name] : Number(row.values[name]);
    const axes = [...names, score].map((name, place) => {
      const all = rows.map((row) => of(row, name)).filter(known), texts = all.some((one) => typeof one === "string");
      const kinds = texts ? [...new Set(all.map(String))].sort() : [];
      const [low, high] = [Math.min(...all), Math.max(...all)], log = !texts && name !== score && low > 0 && high / low > 50;
      const scaled = (value) => log ? Math.log(value) : value, span = scaled(high) - scaled(low) || 1;
      const share = (value) => texts ? (kinds.length > 1 ? kinds.indexOf(String(value)) / (kinds.length - 1) : .5) : (scaled(value) - scaled(low)) / span;
      return { name, x: place * step, y: (row) => HEIGHT - HEIGHT * share(of(row, name)), ends: texts ? [kinds[0], kinds[kinds.length - 1]] : [short(low), short(high)] };
    });
    const best = rows.find((row) => known(row.best));
    for (const row of rows.filter((one) => known(one.best)).reverse()) {
      const line = axes.map((axis, place) => `${place ? "L" : "M"}${axis.x.toFixed(1)} ${axis.y(row).toFixed(1)}`).join("");
      made.append(shape("path", { class: row === best ? "best" : row.end && row.end !== "done" ? "part" : "", d: line }, shape("title", {}, `${row.piece}: ${short(row.best)}`)));
    }
    for (const { name, x, ends } of axes) {
      made.append(shape("path", { class: "frame", d: `M${x} 0V${HEIGHT}` }));
      const texts = [[-8, ends[1]], [HEIGHT + 16, ends[0]], [HEIGHT + 32, name]];
      for (const [y, text] of texts) made.append(shape("text", { x, y, "text-anchor": "middle" }, text));
    }
    return made;
  }

  // Return a chart with a gap wherever nothing was told for long, as between two machines.
  function broken({ x, series }) {
    const steps = x.slice(1).map((one, place) => one - x[place]), usual = [...steps].sort((one, other) => one - other)[steps.length >> 1];
    const spaced = (column, between) => column.flatMap((one, place) => steps[place] > 8 * usual ? [one, between(place)] : [one]);
    return { x: spaced(x, (place) => (x[place] + x[place + 1]) / 2), series: series.map((one) => ({ ...one, values: spaced(one.values, () => null) })) };
  }
  function overall(columns) {
    const across = (choose) => columns[0].map((_, place) => {
      const values = columns.map((one) => one[place]).filter(known);
      return values.length ? choose(values) : undefined;
    });
    return [
      { label: "highest", values: across((all) => Math.max(...all)), place: 0, width: 1, faint: true },
      { label: "mean", values: across((all) => all.reduce((sum, one) => sum + one, 0) / all.length), place: 0, width: 2.2 },
      { label: "lowest", values: across((all) => Math.min(...all)), place: 0, width: 1, faint: true },
    ];
  }

  return { lines, broken, overall, forget, parallel, gains, calibration, short, score, chance };
})();
