"""Makes the calls that it reads from stdin, a line of JSON each, with requests, and
writes a line for each answer before it reads the next.

argv: the base URL
stdin: {"method", "path", "headers", "json"}; json may be missing
stdout: {"status", "reason", "headers", "json"}; json is null where the body is none
"""

import json
import sys

import requests


def document(answer):
    try:
        return answer.json()
    except requests.exceptions.JSONDecodeError:
        return None


def main():
    base = sys.argv[1]
    with requests.Session() as session:
        for line in sys.stdin:
            call = json.loads(line)
            answer = session.request(
                call["method"], base + call["path"], headers=call["headers"], json=call.get("json"), timeout=20
            )
            shown = {
                "status": answer.status_code,
                "reason": answer.reason,
                "headers": dict(answer.headers),
                "json": document(answer),
            }
            print(json.dumps(shown), flush=True)


main()
