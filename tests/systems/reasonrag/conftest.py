"""What all tests of trees speak."""

from tests.datamodules.tree.conftest import protocol as protocol
