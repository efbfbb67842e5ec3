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

PLAIN_ONLY = {"A11", "G01", "G02", "G03", "G07", "G08", "G09", "G11", "G12"}
"""Stories that are about the token, or about the server whatever leads to it."""

ALONE = {"G01", "G03", "G08", "G09"}
"""Stories that need the machine for themselves."""

MULTICLUSTER = {"H02", "H03", "H05"}
"""Cases of linked clusters that do not say so in their objects."""
