"""NeMo AutoModel: configurations and commands as strategies."""

from shardwise.launchers.automodel.reader import NAME, TITLE, read, recognise
from shardwise.launchers.launch import LaunchReader

READER = LaunchReader(name=NAME, title=TITLE, recognise=recognise, read=read)
