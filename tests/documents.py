"""The pages of the site whose commands exist and whose Python runs in a test, beside README.md."""

__all__ = ["PAGES"]

PAGES = [
    f"docs/{name}.md"
    for name in (
        "index",
        "start",
        "launch",
        "verify",
        "how_it_works",
        "benchmarks",
        "large_batch",
        "from_horovod",
        "from_ddp",
        "from_tf_strategies",
    )
]
