"""What all tests of trees speak."""

from tests.datamodules.conftest import protocol as protocol
