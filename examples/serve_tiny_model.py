# SPDX-License-Identifier: Apache-2.0
"""A tiny transformer behind two prefill and two decode processes of different tensor parallelism and the conductor. No GPU, no files; needs NumPy.

    python examples/serve_tiny_model.py
"""

from mooncake.serving_demo.cluster import Cluster


def main() -> None:
    cluster = Cluster()
    try:
        prompt = list(b"The KV cache of this sentence is computed by one process and used by another.")
        tokens = cluster.ask(prompt, 16)  # any client of the OpenAI API would do: POST /v1/completions
        print(f"{cluster.url} answered {tokens}")
        assert tokens == cluster.model.generate(prompt, 16), "a single process says something else"
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
