"""Style of the page: two columns where there is room, one on a phone; light and dark."""

STYLE = """
.nicegui-content { padding: 0; }
.sw-header { background: #0b3d5c; min-height: 48px; padding: 4px 16px; gap: 12px; }
.sw-title { font-size: 20px; font-weight: 700; color: white; }
.sw-claim { color: #c6d7e2; font-size: 14px; }
.sw-grid { display: grid; grid-template-columns: minmax(280px, 340px) minmax(0, 1fr);
  gap: 16px; padding: 12px 16px; width: 100%; }
.sw-inputs, .sw-column { display: flex; flex-direction: column; gap: 6px; }
.sw-heading { font-weight: 600; margin-top: 6px; }
.sw-hint { color: #57606a; font-size: 12px; }
.body--dark .sw-hint { color: #9aa7b4; }
.sw-row { gap: 8px; }
.sw-label { width: 92px; flex: none; font-size: 13px; }
.sw-number { width: 72px; flex: none; }
.sw-two .q-field__control, .sw-three .q-field__control { padding: 0 8px; }
.sw-two { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 6px; width: 100%; }
.sw-three { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 6px;
  width: 100%; }
.sw-panels { background: transparent !important; }
.sw-panels .q-tab-panel { padding: 8px 0; }
.sw-facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 8px;
  width: 100%; }
.sw-fact { border: 1px solid #d0d7de; border-radius: 8px; padding: 8px 12px; }
.body--dark .sw-fact { border-color: #3a424c; }
.sw-fact-name { font-size: 12px; color: #57606a; }
.sw-fact-value { font-size: 22px; font-weight: 600; line-height: 1.3; }
.sw-fact-more { font-size: 12px; color: #57606a; }
.body--dark .sw-fact-name, .body--dark .sw-fact-more { color: #9aa7b4; }
.sw-faults { border-left: 4px solid #cf222e; padding: 8px 12px; white-space: pre-wrap;
  overflow-wrap: anywhere; width: 100%; }
.sw-notes { border-left: 4px solid #9a6700; padding: 4px 12px; font-size: 13px; width: 100%; }
.sw-chart { width: 100%; min-width: 0; }
.sw-plot { width: 100%; }
.sw-all { grid-column: 1 / -1; }
.sw-charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr));
  gap: 8px; width: 100%; }
.sw-bars h3 { font-size: 15px; font-weight: 600; margin: 4px 0; line-height: 1.4; }
.sw-bar { display: flex; height: 34px; margin: 3px 0; border-radius: 4px; overflow: hidden; }
.sw-bar span { overflow: hidden; white-space: nowrap; text-overflow: ellipsis; font-size: 12px;
  line-height: 34px; padding: 0 4px;
  box-sizing: border-box; border-right: 1px solid rgba(255,255,255,.6); }
.sw-bar span:empty { padding: 0; }
.sw-hatched, .sw-hatched span { height: 22px; line-height: 22px; }
.sw-hatched span { background-image: repeating-linear-gradient(45deg, rgba(255,255,255,.45) 0 4px,
  transparent 4px 8px); }
.sw-legend .sw-bracket { width: 18px; height: 7px; border: 2px solid currentColor;
  border-top: 0; border-radius: 0; }
.sw-interval { height: 8px; border: 2px solid currentColor; border-top: 0; margin-bottom: 6px; }
.sw-stack { position: relative; max-height: 420px; overflow-y: auto; }
.sw-stack .sw-bar { height: 26px; }
.sw-stack .sw-bar span { line-height: 26px; }
.sw-limit { position: absolute; top: 0; bottom: 0; width: 0; border-left: 2px dashed #d55e00; }
.sw-legend { display: flex; flex-wrap: wrap; gap: 2px 14px; list-style: none; padding: 0;
  margin: 6px 0 0; font-size: 13px; }
.sw-legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 5px; }
/* Plotly has one color for the active button, and none for a dark page. */
.updatemenu-item-rect[style*="rgb(244, 250, 255)"] { fill: #9fd0f2 !important; }
.body--dark .updatemenu-item-rect[style*="rgb(244, 250, 255)"] { fill: #1f5f8b !important; }
.sw-card { width: 100%; min-width: 0; }
.sw-verdict { border-left: 6px solid; padding: 6px 12px; font-size: 18px; font-weight: 600;
  width: 100%; }
.sw-fits { border-color: #1a7f37; }
.sw-edge { border-color: #bf8700; }
.sw-fits-not { border-color: #cf222e; }
.sw-summary { position: fixed; top: -100px; left: 8px; z-index: 7000; padding: 8px 12px;
  background: #0b3d5c; color: white !important; font-size: 14px; font-weight: 600;
  text-decoration: none; opacity: 1 !important; }
.sw-summary:focus { top: 4px; }
.sw-busy { position: fixed !important; top: 0; left: 0; z-index: 7000; visibility: hidden;
  animation: sw-appear 0s .4s forwards; }
@keyframes sw-appear { to { visibility: visible; } }
.sw-printed { font-size: 14px; }
.sw-printed .scroll { overflow-x: auto; }
.sw-printed table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.sw-printed caption { text-align: left; font-weight: 600; padding: 6px 0 2px; }
.sw-printed th, .sw-printed td { padding: 2px 8px 2px 0; text-align: right; white-space: nowrap;
  vertical-align: top; font-weight: 400; }
.sw-printed thead th { font-weight: 600; border-bottom: 1px solid #d0d7de; }
.sw-printed .text { text-align: left; white-space: normal; }
.sw-printed .long { min-width: 12rem; }
.sw-printed .text:first-child:not(.long), .sw-flag { white-space: nowrap; }
.sw-printed dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 14px;
  margin: 6px 0; }
.sw-printed dt { color: #57606a; }
.body--dark .sw-printed dt { color: #9aa7b4; }
.sw-printed dd { margin: 0; overflow-wrap: anywhere; }
.sw-printed ul { margin: 4px 0; padding-left: 18px; list-style: disc; overflow-wrap: anywhere; }
.sw-file { flex: 1 1 280px; min-width: 0; gap: 2px; }
.sw-mono { font-family: monospace; font-size: 12px; max-height: 200px; }
.sw-export { width: 900px; max-width: 96vw; }
.sw-code { max-height: 50vh; overflow: auto; }
.sw-scroll { overflow-x: auto; width: 100%; }
.sw-plans { container-type: inline-size; overflow-x: auto; width: 100%; }
.sw-plan, .sw-rest { cursor: pointer; }
.sw-rest, .sw-at-never { display: none; }
.sw-rest:has(.sw-below-never) { display: table-row; }
.sw-rest div { display: flex; flex-wrap: wrap; gap: 0 12px; padding: 2px 0 6px; }
.sw-rest td { height: auto !important; padding-top: 0 !important; }
.sw-rest span { white-space: normal; }
.sw-plan:has(+ .sw-rest .sw-below-never) td { border-bottom: 0; }
.sw-below-middle, .sw-below-wide { display: none; }
@container (max-width: 899px) {
  .sw-rest { display: table-row; }
  .sw-plan td { border-bottom: 0 !important; }
  .sw-at-wide { display: none; }
  .sw-below-wide { display: inline; }
}
@container (max-width: 579px) {
  .sw-at-middle { display: none; }
  .sw-below-middle { display: inline; }
  .sw-plans th, .sw-plans td { padding: 2px 4px !important; }
}
.q-btn:focus-visible { box-shadow: 0 0 0 3px #1f6feb; }
.sw-header .q-btn:focus-visible { box-shadow: 0 0 0 3px white; }
:focus-visible { outline: 2px solid #1f6feb; outline-offset: 2px; }
.q-tab:focus-visible { outline-offset: -2px; }
body { --q-positive: #1a7f37 !important; --q-info: #0b5cad !important; }
body.body--light { --q-primary: #0b5cad !important; }
body.body--dark { --q-primary: #79b8ff !important; }
.body--dark .bg-primary .q-btn__content { color: #0d1b2a; }
.q-tooltip { background: #333a42 !important; font-size: 12px; max-width: 360px; }
.sw-header .q-btn { color: white; }
@media (min-width: 861px) {
  .sw-inputs { position: sticky; top: 60px; align-self: start; overflow-y: auto;
    max-height: calc(100vh - 64px); padding-right: 6px; }
}
@media (min-width: 1400px) {
  .sw-grid { grid-template-columns: 600px minmax(0, 1fr); }
  .sw-facts { grid-template-columns: repeat(4, minmax(0, 1fr)); }
  .sw-inputs { flex-direction: row; gap: 16px; }
  .sw-column { flex: 1 1 0; min-width: 0; }
}
@media (max-width: 860px) {
  .sw-grid { grid-template-columns: minmax(0, 1fr); padding: 8px; }
  .sw-claim { display: none; }
  .sw-printed dl { grid-template-columns: minmax(0, 1fr); }
  .sw-printed dd { margin-bottom: 4px; }
  .sw-summary, .sw-summary:focus { left: 0; right: 0; top: auto; bottom: 0; z-index: 2000; }
  .sw-grid { padding-bottom: 56px; }
  .sw-header { flex-wrap: nowrap; gap: 2px; padding: 4px 8px; overflow-x: auto; }
}
"""

SCRIPT = """
<script>
document.documentElement.lang = "en";
// Quasar's bar of requests is a progress bar without a name.
new MutationObserver((_, observer) => {
  const bar = document.querySelector(".q-loading-bar");
  if (!bar) return;
  bar.setAttribute("aria-label", "Loading");
  observer.disconnect();
}).observe(document, {childList: true, subtree: true});
// Plotly refuses to resize a chart in a tab that was just closed; nothing is lost.
window.addEventListener("unhandledrejection", (event) => {
  if (String(event.reason).includes("Resize must be passed a displayed plot")) {
    event.preventDefault();
  }
});
</script>
"""
