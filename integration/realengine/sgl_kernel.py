"""Stands where the CPU build of sgl_kernel would be; that build is not on PyPI.

A dense model with torch_native attention calls one of its kernels, written
here in torch. Any other kernel is named in the error when it is called, not
when it is imported, because the engine imports many that it never calls.
"""

__version__ = "0.0.0"


def assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, _row_width):
    """Store the KV slots of each request's new tokens in its row of the table."""
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):
        count = end - start
        table[row, start:end] = slots[taken : taken + count].to(table.dtype)
        taken += count


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise RuntimeError(f"sgl_kernel.{name} has no CPU version here")

    return absent
