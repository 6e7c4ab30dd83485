"""Our nouns, or the predecessors' own files, in the words of each predecessor."""
