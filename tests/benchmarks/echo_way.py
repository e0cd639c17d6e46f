"""A way that doubles numbers; 0 ends it with an error."""

from __future__ import annotations

import json
import sys

from benchmarks.ways import Message, Turns


def double(work: Message) -> Message:
    print("what a library prints is no answer")
    if not work["number"]:
        sys.exit("there is nothing to double")
    return {"doubled": 2 * work["number"], "added": json.loads(sys.argv[1])["add"]}


if __name__ == "__main__":
    Turns().serve(double)
