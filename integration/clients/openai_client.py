"""Makes the calls that it reads from stdin with the openai package of PyPI, and
writes one line of JSON for each: its result as the package returned it (a
stream as the list of its chunks), or the error that the package raised.

stdin: {"base": "http://host:port", "calls": [{"name", "method", "body"}]}
"""

import json
import sys
import time
import urllib.request

import openai

# What engines take and the package has no parameter for.
EXTRA = ("ignore_eos",)


def load(base):
    """The number of requests that the engines behind the router have."""
    with urllib.request.urlopen(f"{base}/v1/loads", timeout=20) as answer:
        workers = json.load(answer)["workers"]
    return sum(
        rank["num_running_reqs"] + rank["num_waiting_reqs"] + rank["disaggregation"]["prefill_inflight_queue_reqs"]
        for worker in workers.values()
        for rank in worker["loads"]
    )


def arguments(body):
    extra = {key: body[key] for key in EXTRA if key in body}
    return {key: value for key, value in body.items() if key not in EXTRA} | {"extra_body": extra}


def collect(answer, body):
    if not body.get("stream"):
        return answer.model_dump()
    return [chunk.model_dump() for chunk in answer]


def abort(client, base, body):
    """Leaves a stream after three chunks and waits for the engines to be free."""
    stream = client.chat.completions.create(**arguments(body))
    chunks = [next(stream) for _ in range(3)]
    result = {"chunks": len(chunks), "loadBefore": load(base)}
    stream.close()
    left = time.monotonic()
    while True:
        result["loadAfter"] = load(base)
        result["milliseconds"] = (time.monotonic() - left) * 1000
        if result["loadAfter"] == 0 or result["milliseconds"] > 5000:
            return result


def call(client, base, method, body):
    if method == "chat":
        return collect(client.chat.completions.create(**arguments(body)), body)
    if method == "completions":
        return collect(client.completions.create(**arguments(body)), body)
    if method == "models":
        return [model.model_dump() for model in client.models.list()]
    return abort(client, base, body)


def main():
    work = json.load(sys.stdin)
    base = work["base"]
    client = openai.OpenAI(api_key="none", base_url=f"{base}/v1", max_retries=0, timeout=20)
    for one in work["calls"]:
        line = {"name": one["name"]}
        try:
            line["result"] = call(client, base, one["method"], one["body"])
        except openai.APIError as e:
            line["error"] = {"class": type(e).__name__, "status": getattr(e, "status_code", 0), "message": e.message}
        print(json.dumps(line), flush=True)


main()
