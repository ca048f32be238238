"""Lines of a batch file, and such files."""

from __future__ import annotations

import json


def request(name, prompt, **body):
    """A line of a batch file."""
    body = {"model": "m", "prompt": prompt, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
