"""axolotl: files and commands as strategies."""

from shardwise.launchers.axolotl.reader import NAME, TITLE, read, recognise
from shardwise.launchers.launch import LaunchReader

READER = LaunchReader(name=NAME, title=TITLE, recognise=recognise, read=read)
