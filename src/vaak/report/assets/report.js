"use strict";
// Draws the charts that the page's data describe: hover or arrow keys read values, dragging zooms, a double click or Escape resets.
// Timelines follow their player; fields filter a list of runs; a page that is served asks whether it has changed.
{
  let data = JSON.parse(document.getElementById("data").textContent);
  const LIGHT = ["#0969da", "#c2410c", "#1a7f37", "#8250df", "#a8590b", "#bf3989", "#0e7c86", "#57606a"];
  const DARK = ["#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#e3b341", "#f778ba", "#39c5cf", "#adbac7"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = (value) => (value == null ? "–" : Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3)
    ? value.toExponential(3) : String(+value.toPrecision(5)));
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 5 });
  const tickText = (tick) => (tick == null ? "" : tick && Math.abs(tick) < 1e-3 ? (+tick.toPrecision(3)).toExponential() : compact.format(tick));
  const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const eventColour = (kind) => {
    const item = document.querySelector(`.kinds [data-kind="${kind}"]`);
    return item ? getComputedStyle(item).color : colourOf("--soft");
  };

  function nearestValue(chart, series, place) {  // where this curve has no value, its nearest one is read
    const values = chart.data[series];
    for (let away = 0; away < values.length; away++) {
      if (values[place - away] != null) return place - away;
      if (values[place + away] != null) return place + away;
    }
    return place;
  }

  function newestValue(values) {
    for (let place = values.length - 1; place >= 0; place--) if (values[place] != null) return values[place];
    return null;
  }

  const BANDS = ["--warn-band", "--high-band", "--bad-band"];
  function drawBands(chart, bands) {  // from each value up to the next, shaded
    const { ctx, bbox } = chart, bottom = bbox.top + bbox.height;
    const place = (value) => Math.max(bbox.top, Math.min(bottom, chart.valToPos(value, "y", true)));
    ctx.save();
    bands.forEach((band, number) => {
      const low = place(band.from), high = number + 1 < bands.length ? place(bands[number + 1].from) : bbox.top;
      ctx.fillStyle = colourOf(BANDS[number % BANDS.length]);
      ctx.fillRect(bbox.left, high, bbox.width, low - high);
    });
    ctx.restore();
  }

  function drawEvents(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const event of data.events) {
      const x = chart.valToPos(event.step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = eventColour(event.kind);
      ctx.globalAlpha = event.kind === "checkpoint" ? 0.35 : 0.8;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function build(section, panel) {
    const holder = section.querySelector(".plot"), read = section.querySelector(".read");
    const colours = dark.matches ? DARK : LIGHT, soft = colourOf("--soft"), line = colourOf("--line");
    const button = section.querySelector("button");
    const log = button.getAttribute("aria-pressed") === "true";
    const table = uPlot.join(panel.curves.map((curve) => [curve.x, curve.y.map((y) => (log && y <= 0 ? null : y))]));
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const chart = new uPlot({
      width: holder.clientWidth || 380, height: 230,  // folded up, it has no width yet
      scales: { x: { time: false }, y: { distr: log ? 3 : 1,
        ...(panel.bands.length ? { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(100, high ?? 100)] } : {}) } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? compact.format(tick) : "")) },
        { ...axis, size: 64, values: (_, ticks) => ticks.map(tickText) }],
      series: [{ label: "step", value: (_, step) => (step == null ? "newest" : step.toLocaleString("en")) },
        ...panel.curves.map((curve, number) => ({
          label: curve.label, stroke: colours[curve.colour % colours.length], width: 1.5,
          dash: curve.colour < colours.length ? undefined : [6, 3], points: { show: curve.x.length < 40, size: 4 },
          value: (one, value) => {  // while the pointer is elsewhere, the newest value
            const shown = value ?? newestValue(one.data[number + 1]);
            return narrow(shown) + (shown != null && panel.unit === "%" ? " %" : "");
          },
        }))],
      cursor: { sync: { key: "steps", setSeries: false }, drag: { x: true, y: false }, dataIdx: (one, series, place) =>
        (series === 0 ? place : nearestValue(one, series, place)) },
      hooks: { drawClear: [(one) => drawBands(one, panel.bands)], draw: [drawEvents], setScale: [(one, name) => {
        if (name === "x") holder.dataset.steps = `${one.scales.x.min} ${one.scales.x.max}`;
      }], setSelect: [(one) => { isZoomed = isZoomed || one.select.width > 0; }], setCursor: [(one) => {
        const x = one.cursor.left;
        const near = x < 0 ? [] : data.events.filter((event) => Math.abs(one.valToPos(event.step, "x") - x) < 5);
        read.textContent = near.map((event) => `step ${event.step.toLocaleString("en")}: ${event.text}`).join(" · ");
      }] },
    }, table, holder);
    for (const label of holder.querySelectorAll(".u-series th")) {
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); label.click(); }
      });
    }
    return chart;
  }

  function aloud(section, chart, panel) {
    const place = chart.cursor.idx;
    const values = panel.curves.map((curve, number) => `${curve.label} ${narrow(chart.data[number + 1][nearestValue(chart, number + 1, place)])}`);
    const said = section.querySelector(".read");
    said.textContent = `step ${chart.data[0][place].toLocaleString("en")}: ${values.join(", ")}. ${said.textContent}`;
  }

  function onKey(event, section, charts, number, panel) {
    const chart = charts[number], steps = chart.data[0], { min, max } = chart.scales.x;
    const here = chart.cursor.left >= 0 && chart.cursor.idx != null ? chart.cursor.idx : null;
    const zoom = (factor) => {
      isZoomed = true;
      const middle = here == null ? (min + max) / 2 : steps[here];
      charts.forEach((one) => one.setScale("x", { min: middle - (middle - min) * factor, max: middle + (max - middle) * factor }));
    };
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const next = here == null ? 0 : here + (event.key === "ArrowRight" ? 1 : -1);
      const place = Math.max(0, Math.min(steps.length - 1, next));
      chart.setCursor({ left: chart.valToPos(steps[place], "x"), top: chart.over.clientHeight / 2 });
      aloud(section, chart, panel);
    } else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "Escape") reset(charts);
    else return;
    event.preventDefault();
  }

  const reset = (charts) => {
    isZoomed = false;
    charts.forEach((one) => one.setData(one.data));
  };
  let sections = [], charts = [], isZoomed = false;
  const rebuild = (number) => {
    charts[number].destroy();
    charts[number] = build(sections[number], data.panels[number]);
  };
  function drawAll() {
    sections = [...document.querySelectorAll(".chart")];
    charts = sections.map((section, number) => build(section, data.panels[number]));
    sections.forEach((section, number) => {
      const button = section.querySelector("button");
      button.hidden = !data.panels[number].curves.some((curve) => curve.y.some((y) => y > 0));
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
        rebuild(number);
      });
      const plot = section.querySelector(".plot");
      plot.addEventListener("keydown", (event) => onKey(event, section, charts, number, data.panels[number]));
      new ResizeObserver(() => {
        if (plot.clientWidth && charts[number] && plot.clientWidth !== charts[number].width) charts[number].setSize({ width: plot.clientWidth, height: 230 });
      }).observe(plot);
    });
    document.body.dataset.charts = String(document.querySelectorAll(".chart canvas").length);
  }

  function followPlayers() {
    for (const recording of document.querySelectorAll(".recording")) {
      const audio = recording.querySelector("audio"), lines = recording.querySelector(".timeline");
      if (!audio || !lines) continue;
      const seconds = Number(lines.dataset.seconds);
      audio.addEventListener("timeupdate", () => {
        lines.style.setProperty("--at", `${Math.min(100, 100 * audio.currentTime / seconds)}%`);
        lines.classList.add("followed");
      });
      for (const lane of lines.querySelectorAll(".lane")) {
        lane.addEventListener("click", (event) => {
          const box = lane.getBoundingClientRect();
          audio.currentTime = Math.min(seconds * (event.clientX - box.left) / box.width, audio.duration || seconds);
          audio.play();
        });
      }
    }
  }

  function filterRuns() {
    const fields = [...document.querySelectorAll("[data-filter]")], rows = [...document.querySelectorAll(".runs tbody tr")];
    const choose = () => {
      for (const row of rows) {
        row.hidden = !fields.every((field) => {
          const wanted = field.value.trim().toLowerCase(), there = (row.dataset[field.dataset.filter] || "").toLowerCase();
          return field.tagName === "SELECT" ? !wanted || there === wanted : there.includes(wanted);
        });
      }
      document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} runs`;
    };
    fields.forEach((field) => field.addEventListener("input", choose));
    if (fields.length) choose();
  }

  async function refresh() {  // in place: what is open, filtered or zoomed stays so
    const page = new DOMParser().parseFromString(await (await fetch("./", { cache: "no-store" })).text(), "text/html");
    const open = new Set([...document.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
    const values = Object.fromEntries([...document.querySelectorAll("[data-filter]")].map((one) => [one.dataset.filter, one.value]));
    const zoom = isZoomed && charts.length ? { min: charts[0].scales.x.min, max: charts[0].scales.x.max } : null;
    charts.forEach((one) => one.destroy());
    for (const name of ["header", "main"]) document.querySelector(`body > ${name}`).replaceWith(page.querySelector(`body > ${name}`));
    data = JSON.parse(page.getElementById("data").textContent);
    for (const one of document.querySelectorAll("details > summary")) if (open.has(one.textContent)) one.parentElement.open = true;
    for (const one of document.querySelectorAll("[data-filter]")) one.value = values[one.dataset.filter] ?? "";
    start();
    if (zoom) charts.forEach((one) => one.setScale("x", zoom));
    isZoomed = Boolean(zoom);
  }

  function watch() {
    let version = null;
    const ask = async () => {
      try {
        const answer = await fetch("version", { cache: "no-store" }), now = answer.ok ? await answer.text() : version;
        const isPlaying = [...document.querySelectorAll("audio")].some((one) => !one.paused);
        if (version !== null && now !== version && !isPlaying) await refresh();
        if (!isPlaying) version = now;
      } catch { /* the server has ended: the page stays as it is */ }
      setTimeout(ask, 2000);
    };
    ask();
  }

  function start() {
    drawAll();
    followPlayers();
    filterRuns();
  }
  start();
  dark.addEventListener("change", () => sections.forEach((_, number) => rebuild(number)));
  if ("live" in document.documentElement.dataset) watch();
}
