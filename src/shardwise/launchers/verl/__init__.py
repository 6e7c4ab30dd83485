"""verl: the update of the policy in commands and configurations as strategies."""

from shardwise.launchers.launch import LaunchReader
from shardwise.launchers.verl.reader import NAME, TITLE, read, recognise

READER = LaunchReader(name=NAME, title=TITLE, recognise=recognise, read=read)
