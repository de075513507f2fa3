"use strict";
// Draws the charts that the page's data describe: hover or arrow keys read values, dragging zooms, a double click or Escape resets.
{
  const data = JSON.parse(document.getElementById("data").textContent);
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
      width: holder.clientWidth, height: 230,
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? compact.format(tick) : "")) },
        { ...axis, size: 64, values: (_, ticks) => ticks.map(tickText) }],
      series: [{ label: "step", value: (_, step) => (step == null ? "–" : step.toLocaleString("en")) },
        ...panel.curves.map((curve, number) => ({
          label: curve.label, stroke: colours[number % colours.length], width: 1.5,
          dash: number < colours.length ? undefined : [6, 3], points: { show: curve.x.length < 40, size: 4 },
          value: (_, value) => narrow(value) + (value != null && panel.unit === "%" ? " %" : ""),
        }))],
      cursor: { sync: { key: "steps", setSeries: false }, drag: { x: true, y: false }, dataIdx: (one, series, place) =>
        (series === 0 ? place : nearestValue(one, series, place)) },
      hooks: { draw: [drawEvents], setCursor: [(one) => {
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

  const reset = (charts) => charts.forEach((one) => one.setData(one.data));
  const sections = [...document.querySelectorAll(".chart")];
  const charts = sections.map((section, number) => build(section, data.panels[number]));
  const rebuild = (number) => {
    charts[number].destroy();
    charts[number] = build(sections[number], data.panels[number]);
  };
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
      if (plot.clientWidth && plot.clientWidth !== charts[number].width) charts[number].setSize({ width: plot.clientWidth, height: 230 });
    }).observe(plot);
  });
  dark.addEventListener("change", () => sections.forEach((_, number) => rebuild(number)));
  document.body.dataset.charts = String(document.querySelectorAll(".chart canvas").length);
}
