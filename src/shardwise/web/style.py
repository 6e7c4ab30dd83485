"""Style of the page: two columns where there is room, one on a phone; light and dark."""

STYLE = """
.nicegui-content { padding: 0; }
.sw-header { background: #0b3d5c; min-height: 48px; padding: 4px 16px; gap: 12px; }
.sw-title { font-size: 20px; font-weight: 700; color: white; }
.sw-claim { color: #c6d7e2; font-size: 14px; }
.sw-grid { display: grid; grid-template-columns: minmax(280px, 340px) minmax(0, 1fr);
  gap: 16px; padding: 12px 16px; width: 100%; }
.sw-inputs { display: flex; flex-direction: column; gap: 6px; }
.sw-heading { font-weight: 600; margin-top: 6px; }
.sw-hint { color: #57606a; font-size: 12px; }
.body--dark .sw-hint { color: #9aa7b4; }
.sw-row { gap: 8px; }
.sw-label { width: 92px; flex: none; font-size: 13px; }
.sw-number { width: 72px; flex: none; }
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
.sw-charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr));
  gap: 8px; width: 100%; }
.sw-bars h3 { font-size: 15px; font-weight: 600; margin: 4px 0; line-height: 1.4; }
.sw-bar { display: flex; height: 34px; margin: 3px 0; border-radius: 4px; overflow: hidden; }
.sw-bar span { overflow: hidden; white-space: nowrap; text-overflow: ellipsis; font-size: 12px;
  line-height: 34px; padding: 0 4px; color: white; text-shadow: 0 0 3px rgba(0,0,0,.75);
  box-sizing: border-box; border-right: 1px solid rgba(255,255,255,.6); }
.sw-bar span:empty { padding: 0; }
.sw-hatched, .sw-hatched span { height: 22px; line-height: 22px; }
.sw-hatched span { background-image: repeating-linear-gradient(45deg, rgba(255,255,255,.45) 0 4px,
  transparent 4px 8px); }
.sw-interval { height: 8px; border: 2px solid currentColor; border-top: 0; margin-bottom: 6px; }
.sw-stack { position: relative; max-height: 420px; overflow-y: auto; }
.sw-stack .sw-bar { height: 26px; }
.sw-stack .sw-bar span { line-height: 26px; }
.sw-limit { position: absolute; top: 0; bottom: 0; width: 0; border-left: 2px dashed #d55e00; }
.sw-legend { display: flex; flex-wrap: wrap; gap: 2px 14px; list-style: none; padding: 0;
  margin: 6px 0 0; font-size: 13px; }
.sw-legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 5px; }
.sw-card { width: 100%; min-width: 0; }
.sw-export { width: 900px; max-width: 96vw; }
.sw-code { max-height: 50vh; overflow: auto; }
.sw-scroll { overflow-x: auto; width: 100%; }
:focus-visible { outline: 2px solid #1f6feb; outline-offset: 2px; }
@media (max-width: 860px) {
  .sw-grid { grid-template-columns: minmax(0, 1fr); padding: 8px; }
  .sw-claim { display: none; }
}
"""

SCRIPT = """
<script>
// Plotly refuses to resize a chart in a tab that was just closed; nothing is lost.
window.addEventListener("unhandledrejection", (event) => {
  if (String(event.reason).includes("Resize must be passed a displayed plot")) {
    event.preventDefault();
  }
});
</script>
"""
