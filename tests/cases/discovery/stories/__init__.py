"""Cases that no data says how to play: one procedure per id."""

from tests.cases.discovery.stories import endpoints, life, load, opacity, profiles
from tests.cases.discovery.stories.stage import Story

STORIES: dict[str, Story] = {
    **endpoints.STORIES,
    **opacity.STORIES,
    **profiles.STORIES,
    **life.STORIES,
    **load.STORIES,
}
"""Procedures by case id. Each says with what it has played: runs, whose findings are the case's."""

MULTICLUSTER = {"H02", "H03", "H05"}
"""Cases of linked clusters that do not say so in their objects."""
