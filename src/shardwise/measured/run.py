"""Temporary."""
import json
class RunModel(dict):
    def __getattr__(self, k):
        v = self.get(k)
        if k in ("recompute","features"): return v or {}
        return RunModel(v) if isinstance(v, dict) else v
class Run(RunModel):
    @property
    def step_s(self):
        d, m = self.derived, self.measured
        if m.step_time_s: return float(m.step_time_s)
        if d.step_time_s_from_tflops: return float(d.step_time_s_from_tflops)
        if d.step_time_s: return float(d.step_time_s)
        t = m.tokens_per_s_per_gpu or d.tokens_per_s_per_gpu
        if t and self.global_batch: return self.global_batch*self.model.seq_len/(t*self.hardware.count)
        return None
def load(path="/work/shared/measured/training.json"):
    return [Run(r) for r in json.load(open(path))]
