"use strict";
(() => {
  const LETTERS =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;,=.?@^_`{|}~";
  const NARROW = 560; // px of a chart
  const LABEL = 20; // letters in a line of a label, on narrow screens
  const TITLE = 34;
  const NAME = 36; // and in one of a legend
  const LINE = 17; // px
  const TICKS = 18; // of a logarithmic axis
  const SHORT = 10; // letters of a label next to a point
  const LEGEND_LINE = 22; // px
  const ROUNDS = 3; // a legend may take more lines once there is room for them
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const boxes = [...document.querySelectorAll("[data-chart]")];
  const packedOf = (id) => document.getElementById(id).textContent.trim();
  let charts = null;
  let colors = null;

  /** Bytes of base 85: 5 letters are 4 bytes, the most significant first. */
  function bytesOf(text) {
    const values = new Uint8Array(128);
    for (let i = 0; i < LETTERS.length; i++) values[LETTERS.charCodeAt(i)] = i;
    const missing = (5 - (text.length % 5)) % 5;
    const bytes = new Uint8Array(((text.length + missing) / 5) * 4);
    for (let i = 0, to = 0; i < text.length; i += 5, to += 4) {
      let word = 0;
      for (let k = 0; k < 5; k++) {
        word = word * 85 + (i + k < text.length ? values[text.charCodeAt(i + k)] : 84);
      }
      bytes[to] = word >>> 24;
      bytes[to + 1] = word >>> 16;
      bytes[to + 2] = word >>> 8;
      bytes[to + 3] = word;
    }
    return bytes.subarray(0, bytes.length - missing);
  }

  function unpack(id) {
    const stream = new Blob([bytesOf(packedOf(id))]).stream();
    return new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
  }

  /** A copy with the colors of the theme. */
  function themed(value, isDark) {
    if (typeof value === "string") return (isDark && colors[value]) || value;
    if (Array.isArray(value)) return value.map((one) => themed(one, isDark));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, one]) => [key, themed(one, isDark)]),
    );
  }

  /** Text in lines of about so many letters; markup is left as it is. */
  function wrapped(text, most) {
    if (typeof text !== "string" || text.length <= most || text.includes("<")) return text;
    const lines = [""];
    const joint = text.includes(" · ") ? " · " : " ";
    for (const word of text.split(joint)) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length >= most) lines.push(word);
      else lines[lines.length - 1] = last ? last + joint + word : word;
    }
    return lines.join("<br>");
  }

  /** Change a chart so that it can be read on a narrow screen. */
  function narrow(chart) {
    const words = (list) => (Array.isArray(list) ? list.map((one) => wrapped(one, LABEL)) : list);
    const rows = new Set();
    for (const trace of chart.data) {
      trace.y = words(trace.y);
      if (trace.orientation === "h") trace.y.forEach((one) => rows.add(String(one)));
      trace.name = wrapped(trace.name, NAME);
      const long = [trace.text].flat().some((one) => one && one.length > SHORT);
      if (long && trace.mode) trace.mode = trace.mode.replace("+text", "");
      if (trace.colorbar) {
        Object.assign(trace.colorbar, { orientation: "h", y: 1.02, yanchor: "bottom", x: 0.5 });
        trace.colorbar.title = { ...trace.colorbar.title, side: "top" };
      }
    }
    // Rows whose labels take several lines are as high as these.
    const lines = Math.max(0, ...[...rows].map((row) => row.split("<br>").length));
    const meta = chart.layout.meta || {};
    if (rows.size) meta.inner_height = Math.max(meta.inner_height, rows.size * lines * LINE);
    for (const [name, axis] of Object.entries(chart.layout)) {
      if (!/^[xy]axis\d*$/.test(name)) continue;
      if (axis.title && axis.title.text) axis.title.text = wrapped(axis.title.text, TITLE);
      axis.tickfont = { ...axis.tickfont, size: 11 };
      if (name.startsWith("x") && axis.type === "log" && (axis.tickvals || []).length > TICKS) {
        const decade = axis.tickvals.map((value) => Number.isInteger(Math.log10(value)));
        axis.ticktext = axis.ticktext.filter((_, i) => decade[i]);
        axis.tickvals = axis.tickvals.filter((_, i) => decade[i]);
      }
      if (axis.ticktext) axis.ticktext = words(axis.ticktext);
      if (axis.categoryarray) axis.categoryarray = words(axis.categoryarray);
    }
  }

  async function draw(box, isDark) {
    const chart = themed(charts[box.dataset.chart], isDark);
    const meta = chart.layout.meta || {};
    const wide = box.parentElement.clientWidth;
    box.style.minWidth = meta.least_width > wide ? `${meta.least_width}px` : "";
    if (Math.max(wide, meta.least_width || 0) < NARROW) narrow(chart);
    const layout = {
      ...chart.layout,
      width: Math.max(wide, meta.least_width || 0),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: chart.layout.plot_bgcolor || "rgba(0,0,0,0)",
    };
    // Room for the largest legend: without room for axes the library draws nothing.
    const legend = chart.data.filter((trace) => trace.showlegend !== false).length;
    layout.height = (layout.height || 0) + LEGEND_LINE * legend;
    const config = { displaylogo: false };
    await Plotly.react(box, chart.data, layout, config);
    // Legends and labels take lines of their own: the area of the data stays as high as intended.
    for (let round = 0; round < ROUNDS; round++) {
      const lacks = meta.inner_height - box._fullLayout._size.h;
      if (!(Math.abs(lacks) > 2)) break;
      await Plotly.relayout(box, { height: box._fullLayout.height + lacks });
    }
    box.dataset.drawn = isDark ? "dark" : "light";
  }

  const drawAll = async (isDark) => {
    for (const box of boxes) await draw(box, isDark);
    document.documentElement.dataset.ready = "true";
  };

  function fail(text) {
    for (const note of document.querySelectorAll("[data-failure]")) {
      note.textContent = text;
      note.hidden = false;
    }
  }

  async function start() {
    if (!boxes.length) return;
    if (typeof DecompressionStream === "undefined") {
      fail(
        "This browser cannot unpack the charts of this page (it has no DecompressionStream). " +
          "Chrome 80, Firefox 113, Safari 16.4 and later can. Tables and text are complete.",
      );
      return;
    }
    const script = document.createElement("script");
    script.textContent = await unpack("packed-library");
    document.head.append(script);
    ({ charts, dark: colors } = JSON.parse(await unpack("packed-charts")));
    await drawAll(dark.matches);
    dark.addEventListener("change", () => drawAll(dark.matches));
    let timer = 0;
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      clearTimeout(timer);
      timer = setTimeout(() => drawAll(dark.matches), 150);
    });
    window.addEventListener("beforeprint", () => drawAll(false));
    window.addEventListener("afterprint", () => drawAll(dark.matches));
  }

  start().catch((error) => fail(`The charts could not be drawn: ${error.message}`));
})();
