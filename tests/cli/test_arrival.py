"""How pods came, told apart by `redirections` and `explain`."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, answer
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.cgroups import cgroup
from tests.lab.cni import arguments, ask, conf, environment

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

UID = "7d3b6f1e-0d5e-4c38-8a1f-3f6c2a9b1c11"
CONTAINER = "3f9a51c07be2d48f90aa17c3d5b6e8f0"
