"""`make demo`: the main job told as a story, on real kernel state, each claim checked as it is made."""
