"""TRL and the Hugging Face Trainer: scripts and YAML as strategies."""

from shardwise.launchers.launch import LaunchReader
from shardwise.launchers.trl.reader import NAME, TITLE, read, recognise

READER = LaunchReader(name=NAME, title=TITLE, recognise=recognise, read=read)
