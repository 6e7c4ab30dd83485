"""OpenRLHF: commands as strategies."""

from shardwise.launchers.launch import LaunchReader
from shardwise.launchers.openrlhf.reader import NAME, TITLE, read, recognise

READER = LaunchReader(name=NAME, title=TITLE, recognise=recognise, read=read)
