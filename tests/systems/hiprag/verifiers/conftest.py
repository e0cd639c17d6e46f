"""The world written by hand, whose facts a test may name."""

from tests.envs.world.conftest import village as village
