"""Temporary predictor."""
from shardwise.measured.architecture import model_of
from shardwise.measured.hardware import system_of
from shardwise.measured.software import stack_of
from shardwise.measured.strategy_of import strategy_of
from shardwise.measured.refused import NotModelledError

def translate(run):
    assumed=[]
    if run.task=="pretrain-total": raise NotModelledError("total of a project, not a step")
    model=model_of(run,assumed); system=system_of(run,assumed); stack=stack_of(run,assumed)
    return model,system,strategy_of(run,model,system,stack,assumed),assumed
