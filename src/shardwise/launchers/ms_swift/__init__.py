"""ms-swift: files and commands as strategies."""

from shardwise.launchers.launch import LaunchReader
from shardwise.launchers.ms_swift.reader import NAME, TITLE, read, recognise

READER = LaunchReader(name=NAME, title=TITLE, recognise=recognise, read=read)
