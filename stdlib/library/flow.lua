---@meta flow

-- The Lua API, for editors: lua-language-server uses it for completion and checks. It is never loaded.

---@class flow
---@field null flow.null a JSON null; unlike nil, it can be an item of a list
---@field missing flow.missing the result of a task whose failure is ignored
---@field param flow.params
---@field data flow.data
---@field safetensors flow.safetensors
---@field text flow.text
---@field table flow.table
---@field json flow.json
---@field fs flow.fs
---@field image flow.image
---@field nn flow.nn
---@field optim flow.optim
---@field metrics flow.metrics
---@field models flow.models
local flow = {}

---@class flow.null
---@class flow.missing

-- ---- definitions

---@class flow.retries
---@field max? integer number of retries after failures of the task itself
---@field backoff? string|number delay before the first retry, "1s"
---@field factor? number factor of the delay from retry to retry
---@field cap? string|number maximum delay, "1m"
---@field oom? { max: integer, memory: string } retries after running out of memory, and the growth of the memory, "x2"
---@field infra? integer number of retries after infrastructure failures

---@class flow.options
---@field cpus? integer|fun(args: table, attempt: integer): integer CPU slots of an attempt; --jobs counts all of them
---@field memory? string|integer|fun(args: table, attempt: integer): string|integer "2G"; an attempt that exceeds it fails as out of memory
---@field retries? integer|flow.retries
---@field on_error? "ignore"|"fail" ignore: the run continues, and the result is flow.missing
---@field timeout? string|number|fun(args: table, attempt: integer): string maximum duration of an attempt, "10m"; for a service: of a request
---@field cache? boolean|string false: executed in every run; a string: a salt
---@field priority? integer higher starts first
---@field queue? string
---@field env? table<string, string|flow.secret> variables for the attempt
---@field seed? integer|string enters ctx.seed
---@field ranks? integer|{ min: integer, max: integer }
---@field gpus? number|fun(args: table, attempt: integer): number
---@field gpu_memory? string|integer|fun(args: table, attempt: integer): string|integer
---@field gpu? string
---@field where? string
---@field resources? table<string, number>|fun(args: table, attempt: integer): table<string, number> custom resources of a worker, { fpga = 1 }

---@class flow.shell_options: flow.options
---@field command string executed by `bash -euo pipefail -c`, with {placeholders}
---@field args? string[] names of positional arguments
---@field outputs? table<string, string|{ [1]: string, glob?: boolean, optional?: boolean }> files that must exist after exit code 0 unless optional, with {placeholders}; a glob gives a list
---@field shell? string[] { "sh", "-eu", "-c" }
---@field stage? "copy" makes writable copies of inputs
---@field before? string text that the shell runs before the command
---@field modules? string[] { "gcc/12.3", "cuda/12" }
---@field venv? string a requirements file, or the folder of a Python environment
---@field conda? string an environment.yml, a lock file, or the folder of a conda environment
---@field container? string "docker://IMAGE", "podman://IMAGE" or a .sif

---@class flow.strings a tensor of BYTES: its strings in row-major order
---@field [integer] string
---@field shape? integer[] without it, a list that predict returns has one dimension

---@class flow.service_options: flow.options
---@field listen? string "127.0.0.1:8080", "[::1]:8080" or "0.0.0.0:8080"
---@field port? integer of 127.0.0.1; 0 selects a free port
---@field tls? { cert: string, key: string, clients?: string } PEM files; with clients, callers need certificates too
---@field keys? flow.secret|flow.file flow.env("API_KEYS") or flow.file("keys.txt")
---@field hosts? string[] DNS names by which requests may call it
---@field insecure? boolean may listen beyond loopback without tls and keys
---@field replicas? integer|{ min: integer, max?: integer } number of processes that answer requests
---@field idempotent? boolean false: a request never runs again after its replica died
---@field rollover? "replace" drains the version before first
---@field canary? { [integer]: integer, every?: string, max_error_rate?: number, max_p99?: string, min_requests?: integer, gate?: flow.callable } { 10, 50, 100, every = "1m" }
---@field warmup? table<string, flow.tensor|flow.strings> a request that a version gets before traffic
---@field grpc? integer the port of gRPC; 0: a free one
---@field drain_delay? string for which a service that ends accepts connections
---@field command? string starts a server at {port}, instead of a function
---@field args? string[] of command: names of positional arguments
---@field shell? string[] of command
---@field before? string of command
---@field modules? string[] of command
---@field venv? string of command
---@field conda? string of command
---@field container? string of command
---@field ready? string of command: a path that the server answers once it is ready, "/health"
---@field health? string of command: a path that it answers while it is well; as ready
---@field start_timeout? string of command: within which it is ready
---@field batch? { max?: integer, wait?: string|number, pad?: boolean }
---@field queue? integer number of requests that may wait
---@field inputs? table<string, { [1]: string, [2]: integer[] }> { pixels = { "FP32", { -1, 64 } } }
---@field outputs? table<string, { [1]: string, [2]: integer[] }>

---@class flow.secret

---@class flow.handle a future result; indexing gives a handle to a part
---@field [any] flow.handle
local handle = {}
---@param ... flow.handle
---@return flow.handle itself
function handle:after(...) end
---@param field string
---@return flow.handle list the field of every item
function handle:each(field) end
---@param name string a field that has a method's name
---@return flow.handle
function handle:part(name) end
---@param tag string|fun(item: any): string shown as `align[s3]`; of a map, a function that names each instance
---@return flow.handle itself
function handle:tag(tag) end
---@param options { missing: "null"|"omit" } null: flow.null in the place of each item of a map that is missing
---@return flow.handle list
function handle:results(options) end
---@param n integer maximum number of instances of a map that run at once
---@return flow.handle itself
function handle:limit(n) end

---@class flow.callable a task; calling it in a pipeline's body adds a node
---@overload fun(...): flow.handle
local callable = {}
---@param options flow.options cpus, memory, gpus, gpu_memory, gpu, where, resources, ranks, retries, timeout, priority, queue, on_error
---@return flow.callable task the same task with these options
function callable:with(options) end

---@param name string letters, digits, `_`, `.` and `-`; unique in its file
---@param options flow.options
---@param body fun(ctx: flow.context, ...): any
---@return flow.callable
---@overload fun(name: string, body: fun(ctx: flow.context, ...): any): flow.callable
function flow.task(name, options, body) end

---@param name string
---@param options flow.shell_options
---@return flow.callable
function flow.shell(name, options) end

---A task whose body calls tasks and returns handles; the body runs once.
---@param name string
---@param options flow.options
---@param body fun(ctx: flow.context, ...): any
---@return flow.callable
---@overload fun(name: string, body: fun(ctx: flow.context, ...): any): flow.callable
function flow.dynamic(name, options, body) end

---Of the inputs by name and what is known of the requests; returns the outputs by name, and what the responses have besides.
---@alias flow.predict fun(inputs: table<string, flow.tensor|flow.strings>, request: table): table, { parameters?: table, requests?: table[] }?

---A long-lived task that answers the Open Inference Protocol v2 over HTTP.
---@param name string the name of the model
---@param options flow.service_options
---@param body? fun(ctx: flow.context, ...): { predict: flow.predict } absent with command
---@return flow.callable
---@overload fun(name: string, body: fun(ctx: flow.context, ...): { predict: function }): flow.callable
function flow.service(name, options, body) end

---A task that the host program defines.
---@param name string
---@param options? flow.options
---@return flow.callable
function flow.native(name, options) end

---Operations on tensors that the host program defines: pass them to a task, which calls flow.operations.
---@param name string
---@return string library a file, by content
function flow.native_operations(name) end

---@class flow.pipeline

---@param name string
---@param parameters table<string, flow.param>
---@param body fun(p: table): any
---@return flow.callable pipeline the script returns it; a call in another pipeline's body inlines it
function flow.pipeline(name, parameters, body) end

---`task(ctx, item, …)` for each item; a handle to the list of results, in order.
---@param task flow.callable or a pipeline: it is called with each item of a Lua list, and the results are a list
---@param list table|flow.handle
---@return flow.handle
function flow.map(task, list, ...) end

---@param condition flow.handle|boolean
---@param taken fun(): any
---@param otherwise? fun(): any
---@return flow.handle the result of the selected branch
function flow.when(condition, taken, otherwise) end

---@param path string a fixed file in the script's folder; or, in a pipeline's body, a URL (http, https, s3)
---@param options? { sha256: string?, offline: boolean? } of a URL: the digest that the content must have; use the copy of the state
---@return any
function flow.file(path, options) end

---The files that a pattern matches, sorted by path; called in a pipeline's body.
---@class flow.files
---@overload fun(pattern: string, options?: { allow_empty?: boolean }): any[]
flow.files = {}

---The files in a folder at all depths, sorted by path; each is named by its path in the folder.
---@param folder flow.file|flow.handle a folder: a path parameter, flow.file or a part of a result
---@return flow.file[]|flow.handle files of a result: a handle to the list
function flow.list(folder) end

---Groups of files by the captures of a pattern: `reads/{sample}_R{n}.fastq.gz`.
---@param pattern string
---@param options? { allow_empty?: boolean }
---@return table[] groups `{ sample = "s1", files = { ["1"] = …, ["2"] = … } }`, sorted by the captures
function flow.files.groups(pattern, options) end

---A secret: it is not stored, and is redacted in logs and errors. A task's result is stored without redaction.
---@param name string a variable of the submitter's environment, for the option `env`
---@return flow.secret
function flow.env(name) end

-- ---- parameters

---@class flow.param
---@class flow.param_options
---@field default? any a parameter without a default is required
---@field help? string
---@field min? number
---@field max? number
---@field pattern? string
---@field of? string the type of a list's items

---@class flow.params
local params = {}
---@param options flow.param_options
---@return integer
function params.int(options) end
---@param options flow.param_options
---@return number
function params.number(options) end
---@param options flow.param_options
---@return string
function params.string(options) end
---@param options flow.param_options
---@return boolean
function params.boolean(options) end
---@param options flow.param_options
---@return string path a file or folder, by content
function params.path(options) end
---@param options flow.param_options
---@return string[] files as flow.files lists them; a pattern, `@names.txt` or a list of paths
function params.files(options) end
---@param options table the choices as a list, and `default`
---@return string
function params.choice(options) end
---@param options flow.param_options
---@return table
function params.list(options) end

-- ---- in a task

---@class flow.context
---@field run string the run's id
---@field task string the node's name
---@field attempt integer 1 for the first
---@field rank integer from 0
---@field ranks integer
---@field comm flow.comm collectives of the ranks
---@field device flow.device "cuda:0" if the attempt has a GPU, otherwise "cpu"
---@field dir string the scratch folder of this attempt
---@field seed integer derived from the cache key; math.random is seeded with it
---@field stopping boolean whether the attempt must save its state and end
local context = {}
---@param format string
function context:log(format, ...) end
---@param fraction number 0 to 1
---@param metrics? table<string, number>
function context:progress(fraction, metrics) end
---@param name string
---@param value number kept with the run, also NaN
---@param step? integer default: the one after the series' last point
function context:metric(name, value, step) end
---@param state any copied, then written while the attempt continues; if ctx.stopping, durable before the attempt ends here
function context:checkpoint(state) end
---@return any state the last checkpoint of this node and key, or nil
function context:restore() end
---@generic T
---@param name string
---@param body fun(...): T called once; later attempts get the stored result
---@return T
function context:step(name, body, ...) end
---@param signal string
---@param options? { timeout: string|number }
---@return any value nil and "timeout" after the timeout
---@return string? reason
function context:wait(signal, options) end
---@param name string a file or folder below ctx.dir
---@return string file the file as a value
function context:file(name) end

---@class flow.async_handle
local async_handle = {}
---@return any result the result of the call
function async_handle:wait() end

---@alias flow.reduce_op "sum"|"mean"|"max"|"min"
---@alias flow.async { async: boolean } the call returns a flow.async_handle at once

---@class flow.comm
---@field rank integer from 0
---@field ranks integer
local comm = {}
---@generic T: flow.tensor|table|number
---@param x T tensors are changed in place
---@param op? flow.reduce_op "sum"
---@param options? flow.async
---@return T x
function comm:all_reduce(x, op, options) end
---@param x flow.tensor
---@param op? flow.reduce_op "sum"
---@param options? flow.async
---@return flow.tensor slice this rank's part of the first dimension
function comm:reduce_scatter(x, op, options) end
---@param x any
---@param options? flow.async
---@return flow.tensor|any[] all
function comm:all_gather(x, options) end
---@param x any tensors are changed in place
---@param root? integer rank whose x is sent (0)
---@param options? flow.async
---@return any x
function comm:broadcast(x, root, options) end
---@param x flow.tensor
---@param options? flow.async
---@return flow.tensor
function comm:all_to_all(x, options) end
function comm:barrier() end
---@param x any
---@param rank integer destination
---@param options? flow.async
function comm:send(x, rank, options) end
---@param x flow.tensor|{ shape: integer[], dtype?: flow.dtype }|nil nil for values other than tensors
---@param rank integer source
---@param options? flow.async
---@return any x
function comm:recv(x, rank, options) end

-- ---- data and helpers

---@class flow.rows
---@operator len: integer
---@field [integer] table
local rows = {}
---@param column integer|string
---@param type? flow.dtype
---@return flow.tensor|string[]
function rows:column(column, type) end
---@param first integer|string[] the first column, or the names
---@param last? integer|flow.dtype
---@param type? flow.dtype
---@return flow.tensor x [rows, columns]
function rows:tensor(first, last, type) end

---@class flow.data
local data = {}
---@param path string .csv or .csv.gz
---@param options? { header?: boolean, delimiter?: string, columns?: table<string, string> }
---@return flow.rows
function data.csv(path, options) end
---@param path string
---@return table[] values one per line
function data.jsonl(path) end
---@param path string .gz compresses
---@param list table
function data.write_jsonl(path, list) end
---@param path string IDX, the format of MNIST
---@return flow.tensor
function data.idx(path) end
---@param path string
---@return flow.tensor
function data.npy(path) end
---@param path string
---@param x flow.tensor
function data.write_npy(path, x) end
---@param path string elements one after the other, little-endian
---@param type flow.dtype
---@param shape integer[] one size may be -1
---@param offset? integer bytes before the first element
---@return flow.tensor
function data.raw(path, type, shape, offset) end
---@param path string
---@param x flow.tensor
function data.write_raw(path, x) end
---@class flow.loader_options
---@field batch? integer rows of a batch
---@field shuffle? integer|boolean a seed; true draws one from math.random
---@field drop_last? boolean
---@field rank? integer from 0
---@field ranks? integer
---@field prefetch? integer number of batches that a thread prepares ahead
---@field transform? fun(batch: any): any
---@field length? integer number of items of a function
---@class flow.loader_state
---@field epoch integer
---@field position integer number of batches that the epoch has returned
---@field seed? integer
---@class flow.loader
---@operator len: integer
local loader = {}
---@param e? integer the state's epoch by default
---@return fun(): any batch
function loader:epoch(e) end
---@return flow.loader_state
function loader:state() end
---@param state flow.loader_state
function loader:load(state) end
---@param dataset flow.tensor|table|fun(i: integer): any
---@param options? flow.loader_options
---@return flow.loader
function data.loader(dataset, options) end
---@param tokens flow.tensor of one dimension
---@param length integer
---@param options? { stride?: integer }
---@return { x: flow.tensor, y: flow.tensor } windows y is x one token later
function data.windows(tokens, length, options) end
---The numbers 1..n, each once, shuffled, `size` at a time.
---@param n integer
---@param size integer
---@param seed? integer
---@return fun(): flow.tensor
function data.batches(n, size, seed) end

---@class flow.safetensors
local safetensors = {}
---A duplicate name in the header is an error, as the format requires.
---@param path string
---@param names? string[]|string a list of names, or a prefix
---@return table<string, flow.tensor> tensors
---@return table<string, string> metadata
function safetensors.load(path, names) end
---@param path string
---@param tensors table<string, flow.tensor>
---@param metadata? table<string, string>
function safetensors.save(path, tensors, metadata) end
---@param path string
---@return table<string, { dtype: flow.dtype|string, shape: integer[] }> tensors
---@return table<string, string> metadata
function safetensors.header(path) end

---@class flow.text
local text = {}
---@param path string
---@return string[]
function text.lines(path) end
---@param path string
---@return string[]
function text.words(path) end
---@param s string
---@return string[]
function text.tokens(s) end
---@param what string|table a path, or a list
---@return table<any, integer>
function text.histogram(what) end
---@param s string
---@param separator? string
---@return string[]
function text.split(s, separator) end
---@param list table
---@param separator? string
---@return string
function text.join(list, separator) end
---@param s string
---@return string
function text.trim(s) end
---@param s string
---@param old string
---@param new string
---@return string
function text.replace(s, old, new) end
---@param s string
---@param start string
---@return boolean
function text.starts_with(s, start) end
---@param s string
---@param tail string
---@return boolean
function text.ends_with(s, tail) end

---@class flow.table
local tables = {}
---@param list table numbers, tensors, or tables of them, which are summed by key
---@return any
function tables.sum(list) end
---@param t table
---@param f fun(value: any, key: any): any
---@return table
function tables.map(t, f) end
---@param t table
---@param f fun(value: any, key: any): any
---@return table
function tables.filter(t, f) end
---@param t table
---@param f fun(result: any, value: any, key: any): any
---@param first? any
---@return any
function tables.reduce(t, f, first) end
---@param t table
---@return table
function tables.keys(t) end
---@param t table
---@return table
function tables.values(t) end
---@param ... table
---@return table
function tables.merge(...) end
---@param t table
---@return table
function tables.copy(t) end
---@param list table
---@param less? fun(a: any, b: any): boolean
---@return table
function tables.sorted(list, less) end
---@param t table
---@return integer
function tables.count(t) end
---@param t table
---@param value any
---@return boolean
function tables.contains(t, value) end
---@param list table
---@param first integer
---@param last? integer
---@return table
function tables.slice(list, first, last) end
---@param first integer
---@param last? integer
---@param step? integer
---@return integer[]
function tables.range(first, last, step) end

---@class flow.json
local json = {}
---@param value any
---@param indent? integer
---@return string
function json.encode(value, indent) end
---@param text string
---@return any
function json.decode(text) end

---@class flow.fs
local fs = {}
---@param path string
---@return string
function fs.read(path) end
---@param path string
---@param text string
function fs.write(path, text) end
---@param path string
---@param text string
function fs.append(path, text) end
---@param path string
---@return boolean
function fs.exists(path) end
---@param path string
---@return boolean
function fs.is_dir(path) end
---@param path string
---@return integer bytes
function fs.size(path) end
---@param path string
---@return string[]
function fs.list(path) end
---@param path string
function fs.mkdir(path) end
---@param path string
function fs.remove(path) end
---@param from string
---@param to string
function fs.copy(from, to) end
---@param from string
---@param to string
function fs.rename(from, to) end
---@param ... string
---@return string
function fs.join(...) end
---@param path string
---@return string
function fs.basename(path) end
---@param path string
---@return string
function fs.dirname(path) end
---@param path string
---@return string
function fs.extension(path) end

---@class flow.image
local image = {}
---@param path string
---@param x flow.tensor [height, width] or [height, width, 3]; u8, or floats from 0 to 1
function image.png(path, x) end
---@param path string
---@param x flow.tensor
function image.ppm(path, x) end

-- ---- tensors

---@alias flow.dtype "f32"|"f16"|"bf16"|"f64"|"i32"|"i64"|"u8"|"bool"
---@alias flow.device "cpu"|"cuda"|"cuda:0"|string
---@alias flow.make flow.dtype|flow.device|{ dtype?: flow.dtype, device?: flow.device, seed?: integer, requires_grad?: boolean }
---@alias flow.dims integer|integer[]

---@class flow.tensor 1-based; x[{ a, b, step }] is a range of the first dimension
---@field shape integer[]
---@field dtype flow.dtype
---@field device flow.device
---@field grad? flow.tensor the sum of the gradients from backward
---@field requires_grad boolean
---@field is_leaf boolean
---@field is_parameter boolean whether it wants a gradient, or wanted one before it was frozen
---@field [any] any
---@operator add: flow.tensor
---@operator sub: flow.tensor
---@operator mul: flow.tensor
---@operator div: flow.tensor
---@operator pow: flow.tensor
---@operator mod: flow.tensor
---@operator idiv: flow.tensor
---@operator unm: flow.tensor
---@operator len: integer
local tensor = {}

---@param lists table|number|flow.tensor
---@param options? flow.make
---@return flow.tensor
function flow.tensor(lists, options) end
---@return flow.tensor
function flow.zeros(...) end
---@return flow.tensor
function flow.ones(...) end
---@param shape integer[]
---@param value number|boolean
---@param options? flow.make
---@return flow.tensor
function flow.full(shape, value, options) end
---@param x flow.tensor
---@return flow.tensor
function flow.zeros_like(x) end
---@param x flow.tensor
---@return flow.tensor
function flow.ones_like(x) end
---@return flow.tensor uniform in 0..1
function flow.rand(...) end
---@return flow.tensor normal
function flow.randn(...) end
---@param low integer
---@param high integer
---@param shape integer[]
---@param options? flow.make
---@return flow.tensor with both ends
function flow.randint(low, high, shape, options) end
---@param first number
---@param last? number
---@param step? number
---@return flow.tensor
function flow.arange(first, last, step) end
---@param first number
---@param last number
---@param count integer
---@param options? flow.make
---@return flow.tensor
function flow.linspace(first, last, count, options) end
---@param size integer
---@param options? flow.make
---@return flow.tensor
function flow.eye(size, options) end
---@param list flow.tensor[]
---@param dimension? integer
---@return flow.tensor
function flow.cat(list, dimension) end
---@param list flow.tensor[]
---@param dimension? integer
---@return flow.tensor
function flow.stack(list, dimension) end
---@param condition flow.tensor
---@param a flow.tensor|number
---@param b flow.tensor|number
---@return flow.tensor
function flow.where(condition, a, b) end
---@param options { paths?: integer, steps?: integer, start?: number, rate?: number, volatility?: number, years?: number, seed?: integer, first?: integer, ends?: boolean, dtype?: flow.dtype, device?: flow.device }
---@return flow.tensor [paths, steps + 1], or with ends [paths]
function flow.gbm(options) end
---@param x any
---@return boolean
function flow.is_tensor(x) end
---@param path string a shared library, see flow/operation.h
---@return table<string, fun(...): flow.tensor> operations by name
function flow.operations(path) end
---@alias flow.sizes integer|integer[]|fun(...): integer, ... up to three, or a function of the call's arguments

---@class flow.kernel_options
---@field block? flow.sizes threads per block (256)
---@field grid? flow.sizes number of blocks; by default, one thread per element of the first result
---@field per_thread? integer without `grid`: elements per thread
---@field shared? integer|fun(...): integer bytes of dynamic shared memory per block
---@field shape? fun(...): integer, ...|table<string, fun(...): integer, ...> the shape of each `out` without `like`
---@field options? string[] for the compiler: { "-DN=3", "--use_fast_math" }
---@field fallback? function the same computation on the CPU
---@field gradient? fun(gradient: flow.tensor, ...): ... returns a gradient for each tensor of the call

---@class flow.kernel
---@overload fun(...): flow.tensor, ...
local kernel = {}
---Compiles the kernel, or finds it in the state; by default for the GPU of this machine.
---@param architecture? string "sm_90"
---@return true
function kernel:compile(architecture) end

---@param name string the name of a `__global__` function in the source
---@param source string CUDA C++
---@param signature string "a: f32, x: in f32, y: out f32 like x, n: count of y": one entry per parameter
---@param options? flow.kernel_options
---@return flow.kernel
function flow.kernel(name, source, signature, options) end
---@param f function
---@return any the result of f
function flow.no_grad(f, ...) end
---@param f function
---@return any the result of f
function flow.enable_grad(f, ...) end
---@return boolean
function flow.is_grad_enabled() end
---@param type flow.dtype
---@param f function
---@return any the result of f
function flow.autocast(type, f, ...) end
---@param f function
---@return flow.tensor
function flow.checkpoint(f, ...) end
---@param f function uses element-wise operations only
---@return flow.tensor the result of f, computed in one pass
function flow.fuse(f, ...) end
---@param f function
---@return fun(...): ... graph launches what f does on a GPU as one CUDA graph, from its third call on
function flow.graph(f) end
---@param f fun() is called before each later launch of the graph that is being recorded
---@param undo? fun() is called if the recording fails
function flow.at_replay(f, undo) end
---@return boolean capturing the function of a flow.graph is being recorded
function flow.is_capturing() end
---@param forward function
---@param backward fun(gradient: flow.tensor, ...): ...
---@return function
function flow.custom_gradient(forward, backward) end
---@class flow.gradient_hook
local gradient_hook = {}
function gradient_hook:remove() end
---@param list flow.tensor[]
---@param ready fun(i: integer) list[i].grad is complete
---@param finished fun() called after a backward that reached one of them
---@param started? fun(order: integer[]) called before a backward: the indices that it will reach, in order
---@return flow.gradient_hook
function flow.gradient_hook(list, ready, finished, started) end
---@param tensors flow.tensor[]
---@param limit number
---@return number|flow.tensor norm the norm before; on a GPU a tensor
function flow.clip_grad_norm(tensors, limit) end
---@param tensors flow.tensor[]
---@param limit number
---@return flow.tensor factor
---@return flow.tensor norm
function flow.clip_grad_factor(tensors, limit) end
---@param tensors table[] of { weights, grad, mean, square, step }
---@param options table
---@param factor? flow.tensor of one number
function flow.adamw_(tensors, options, factor) end
---@param precision "highest"|"high"|"medium" of f32 products and convolutions on GPUs, for the rest of the attempt
function flow.set_float32_matmul_precision(precision) end
---@return string
function flow.get_float32_matmul_precision() end

---@return flow.tensor
function tensor:neg() end
---@return flow.tensor
function tensor:abs() end
---@return flow.tensor
function tensor:sign() end
---@return flow.tensor
function tensor:square() end
---@return flow.tensor
function tensor:relu() end
---@return flow.tensor
function tensor:exp() end
---@return flow.tensor
function tensor:expm1() end
---@return flow.tensor
function tensor:log() end
---@return flow.tensor
function tensor:log1p() end
---@return flow.tensor
function tensor:sqrt() end
---@return flow.tensor
function tensor:rsqrt() end
---@return flow.tensor
function tensor:reciprocal() end
---@return flow.tensor
function tensor:sin() end
---@return flow.tensor
function tensor:cos() end
---@return flow.tensor
function tensor:tanh() end
---@return flow.tensor
function tensor:sigmoid() end
---@return flow.tensor
function tensor:erf() end
---@return flow.tensor
function tensor:silu() end
---@return flow.tensor
function tensor:softplus() end
---@return flow.tensor
function tensor:floor() end
---@return flow.tensor
function tensor:ceil() end
---@return flow.tensor
function tensor:round() end
---@param approximate? "none"|"tanh"
---@return flow.tensor
function tensor:gelu(approximate) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:add(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:sub(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:mul(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:div(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:pow(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:floor_divide(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:remainder(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:maximum(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:minimum(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:eq(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:ne(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:lt(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:le(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:gt(other) end
---@param other flow.tensor|number
---@return flow.tensor
function tensor:ge(other) end
---@param low? number
---@param high? number
---@return flow.tensor
function tensor:clamp(low, high) end
---@param mask flow.tensor
---@param value number
---@return flow.tensor
function tensor:masked_fill(mask, value) end
---@param a flow.tensor
---@param b flow.tensor
---@param factor? number
---@return flow.tensor
function tensor:addcmul(a, b, factor) end
---@param a flow.tensor
---@param b flow.tensor
---@param factor? number
---@return flow.tensor
function tensor:addcdiv(a, b, factor) end
---@param other flow.tensor
---@param weight number
---@return flow.tensor
function tensor:lerp(other, weight) end
---@param p number
---@param seed? integer
---@return flow.tensor
function tensor:dropout(p, seed) end
---@param other flow.tensor
---@return flow.tensor
function tensor:matmul(other) end
---@param other flow.tensor|number
---@param factor? number
---@return flow.tensor itself
function tensor:add_(other, factor) end
---@param other flow.tensor|number
---@return flow.tensor itself
function tensor:sub_(other) end
---@param other flow.tensor|number
---@return flow.tensor itself
function tensor:mul_(other) end
---@param other flow.tensor|number
---@return flow.tensor itself
function tensor:div_(other) end
---@return flow.tensor itself
function tensor:neg_() end
---@return flow.tensor itself
function tensor:exp_() end
---@return flow.tensor itself
function tensor:relu_() end
---@return flow.tensor itself
function tensor:zero_() end
---@param value number|boolean
---@return flow.tensor itself
function tensor:fill_(value) end
---@param other flow.tensor
---@return flow.tensor itself
function tensor:copy_(other) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:sum(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:mean(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:prod(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:norm(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:any(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:all(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:amax(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@return flow.tensor|number|boolean a number if all dimensions are reduced and no gradient is recorded
function tensor:amin(dims, keep) end
---@param dims? flow.dims
---@param keep? boolean
---@param correction? number
---@return flow.tensor|number
function tensor:var(dims, keep, correction) end
---@param dims? flow.dims
---@param keep? boolean
---@param correction? number
---@return flow.tensor|number
function tensor:std(dims, keep, correction) end
---@param dimension? integer
---@param keep? boolean
---@return flow.tensor|number
---@return flow.tensor|integer position
function tensor:max(dimension, keep) end
---@param dimension? integer
---@param keep? boolean
---@return flow.tensor|number
---@return flow.tensor|integer position
function tensor:min(dimension, keep) end
---@param dimension? integer
---@param keep? boolean
---@return flow.tensor|integer
function tensor:argmax(dimension, keep) end
---@param dimension? integer
---@param keep? boolean
---@return flow.tensor|integer
function tensor:argmin(dimension, keep) end
---@param dimension integer
---@return flow.tensor
function tensor:cumsum(dimension) end
---@param dimension integer
---@param keep? boolean
---@return flow.tensor|number
function tensor:logsumexp(dimension, keep) end
---@param k integer
---@return flow.tensor
---@return flow.tensor positions
function tensor:topk(k) end
---@param bins integer
---@param low number
---@param high number
---@return flow.tensor
function tensor:histogram(bins, low, high) end
---@param a? integer
---@param b? integer
---@return flow.tensor
function tensor:t(a, b) end
---@param a? integer
---@param b? integer
---@return flow.tensor
function tensor:transpose(a, b) end
---@return flow.tensor
function tensor:permute(...) end
---@return flow.tensor
function tensor:reshape(...) end
---@return flow.tensor
function tensor:view(...) end
---@return flow.tensor
function tensor:expand(...) end
---@param first? integer
---@param last? integer
---@return flow.tensor
function tensor:flatten(first, last) end
---@param dimension? integer
---@return flow.tensor
function tensor:squeeze(dimension) end
---@param dimension integer
---@return flow.tensor
function tensor:unsqueeze(dimension) end
---@param dimension integer
---@param first integer
---@param length integer
---@return flow.tensor
function tensor:narrow(dimension, first, length) end
---@param dimension integer
---@param index integer
---@return flow.tensor
function tensor:select(dimension, index) end
---@param parts integer
---@param dimension? integer
---@return flow.tensor[]
function tensor:chunk(parts, dimension) end
---@param dimension integer
---@return flow.tensor
function tensor:flip(dimension) end
---@param target flow.dtype|flow.device|flow.tensor
---@param other? flow.dtype|flow.device
---@return flow.tensor
function tensor:to(target, other) end
---@return flow.tensor
function tensor:clone() end
---@return flow.tensor
function tensor:contiguous() end
---@return flow.tensor
function tensor:detach() end
---@return number|boolean
function tensor:item() end
---@return table
function tensor:table() end
---@param dimension integer
---@return integer
function tensor:size(dimension) end
---@return integer
function tensor:count() end
---@return integer
function tensor:dims() end
---@return boolean
function tensor:is_contiguous() end
---@param dimension integer
---@param index flow.tensor
---@return flow.tensor
function tensor:gather(dimension, index) end
---@param dimension integer
---@param index flow.tensor
---@param source flow.tensor
---@return flow.tensor
function tensor:scatter_add(dimension, index, source) end
---@param dimension integer
---@param index flow.tensor
---@return flow.tensor
function tensor:index_select(dimension, index) end
---@param dimension? integer
---@return flow.tensor
function tensor:softmax(dimension) end
---@param dimension? integer
---@return flow.tensor
function tensor:log_softmax(dimension) end
---@param labels flow.tensor
---@param options? { ignore?: integer, reduction?: "mean"|"sum"|"none" }
---@return flow.tensor loss
function tensor:cross_entropy(labels, options) end
---@param weight? flow.tensor
---@param bias? flow.tensor
---@param eps? number
---@param for_product? boolean
---@return flow.tensor
function tensor:layer_norm(weight, bias, eps, for_product) end
---@param weight? flow.tensor
---@param eps? number
---@param for_product? boolean
---@return flow.tensor
function tensor:rms_norm(weight, eps, for_product) end
---@param y flow.tensor
---@param weight? flow.tensor
---@param bias? flow.tensor
---@param eps? number
---@param for_product? boolean
---@return flow.tensor sum
---@return flow.tensor norm
function tensor:add_layer_norm(y, weight, bias, eps, for_product) end
---@param y flow.tensor
---@param weight? flow.tensor
---@param eps? number
---@param for_product? boolean
---@return flow.tensor sum
---@return flow.tensor norm
function tensor:add_rms_norm(y, weight, eps, for_product) end
---@param weight flow.tensor
---@param bias? flow.tensor
---@param activation? "relu"|"gelu"|"gelu_tanh"
---@return flow.tensor
function tensor:linear(weight, bias, activation) end
---@param index flow.tensor
---@return flow.tensor
function tensor:embedding(index) end
---@param keys flow.tensor
---@param values flow.tensor
---@param options? { causal?: boolean, scale?: number }
---@return flow.tensor
function tensor:attention(keys, values, options) end
---@param heads integer
---@param options? { groups?: integer, causal?: boolean, scale?: number }
---@return flow.tensor
function tensor:self_attention(heads, options) end
---@param first? integer
---@param theta? number
---@return flow.tensor
function tensor:rotary(first, theta) end
---@param weight flow.tensor
---@param bias? flow.tensor
---@param options? table
---@return flow.tensor
function tensor:conv2d(weight, bias, options) end
---@param window integer|integer[]
---@param options? table
---@return flow.tensor
function tensor:max_pool2d(window, options) end
---@param window integer|integer[]
---@param options? table
---@return flow.tensor
function tensor:avg_pool2d(window, options) end
---@param height integer
---@param width integer
---@param mode? "bilinear"|"nearest"
---@return flow.tensor
function tensor:resize(height, width, mode) end
---@param mean number[]|flow.tensor
---@param deviation number[]|flow.tensor
---@return flow.tensor
function tensor:normalize(mean, deviation) end
---@param temperature? number
---@param seed? integer
---@return flow.tensor
function tensor:sample(temperature, seed) end
---@param gradient? flow.tensor
function tensor:backward(gradient) end
---@param flag? boolean
---@return flow.tensor itself
function tensor:requires_grad_(flag) end
---@param grad flow.tensor
---@param mean flow.tensor
---@param square flow.tensor
---@param options table
---@return flow.tensor itself
function tensor:adamw_(grad, mean, square, options) end
---@param grad flow.tensor
---@param momentum? flow.tensor
---@param options table
---@return flow.tensor itself
function tensor:sgd_(grad, momentum, options) end

-- ---- networks

---@class flow.module
---@field training boolean
---@overload fun(...): flow.tensor
local module = {}
---@return flow.tensor
function module:forward(...) end
---@return flow.tensor[]
function module:parameters() end
---@return { name: string, tensor: flow.tensor }[]
function module:named_parameters() end
---@return { name: string, tensor: flow.tensor }[] all including buffers
function module:named_tensors() end
---@return flow.tensor[]
function module:gradients() end
---@return flow.module
function module:zero_grad() end
---@return integer number of trainable elements
function module:count() end
---@return table<string, flow.tensor> state can cross an edge or be checkpointed
function module:state() end
---@param state table<string, flow.tensor>
---@param options? { strict?: boolean }
---@return flow.module itself
function module:load(state, options) end
---@return flow.module itself
function module:to(...) end
---@param flag? boolean
---@return flow.module itself
function module:train(flag) end
---@return flow.module itself
function module:eval() end
---@param flag? boolean
---@return flow.module itself
function module:requires_grad_(flag) end
---@param f fun(module: flow.module)
---@return flow.module itself
function module:apply(f) end

---@class flow.data_parallel: flow.module behaves like the model itself
local data_parallel = {}
---@generic T
---@param f fun(...): T backward in it does not reduce gradients
---@return T
function data_parallel:no_sync(f, ...) end

---@class flow.nn
local nn = {}
---@param model flow.module
---@param comm flow.comm
---@param options? { bucket?: integer, compression?: "bf16"|{ top_k: number } }
---@return flow.data_parallel
function nn.data_parallel(model, comm, options) end
---@param name string
---@return table
function nn.class(name) end
---@param x flow.tensor
---@return flow.tensor
function nn.parameter(x) end
---@param inputs integer
---@param outputs integer
---@param options? { bias?: boolean }
---@return flow.module
function nn.linear(inputs, outputs, options) end
---@param rows integer
---@param width integer
---@return flow.module
function nn.embedding(rows, width) end
---@param width integer
---@param options? { eps?: number, bias?: boolean }
---@return flow.module
function nn.layer_norm(width, options) end
---@param width integer
---@param options? { eps?: number }
---@return flow.module
function nn.rms_norm(width, options) end
---@return flow.module
function nn.relu() end
---@return flow.module
function nn.silu() end
---@return flow.module
function nn.tanh() end
---@return flow.module
function nn.sigmoid() end
---@return flow.module
function nn.identity() end
---@return flow.module
function nn.flatten() end
---@param approximate? "none"|"tanh"
---@return flow.module
function nn.gelu(approximate) end
---@param dimension? integer
---@return flow.module
function nn.softmax(dimension) end
---@param dimension? integer
---@return flow.module
function nn.log_softmax(dimension) end
---@param p? number
---@return flow.module
function nn.dropout(p) end
---@param inputs integer
---@param outputs integer
---@param window integer|integer[]
---@param options? { stride?: integer|integer[], padding?: integer|integer[], dilation?: integer|integer[], groups?: integer, bias?: boolean }
---@return flow.module
function nn.conv2d(inputs, outputs, window, options) end
---@param window integer|integer[]
---@param options? { stride?: integer|integer[], padding?: integer|integer[] }
---@return flow.module
function nn.max_pool2d(window, options) end
---@param window integer|integer[]
---@param options? { stride?: integer|integer[], padding?: integer|integer[] }
---@return flow.module
function nn.avg_pool2d(window, options) end
---@param layers flow.module[]
---@return flow.module
function nn.sequential(layers) end
---@class flow.kv_cache keys and values of causal attention at earlier positions
---@field capacity integer
---@field length integer the number of positions in it
local kv_cache = {}
---@return flow.kv_cache itself, without positions
function kv_cache:clear() end
---@param capacity integer the largest number of positions
---@return flow.kv_cache
function nn.kv_cache(capacity) end
---@param width integer
---@param heads integer
---@param options? { causal?: boolean, groups?: integer, bias?: boolean, dropout?: number, rotary?: boolean|number }
---@return flow.module
function nn.attention(width, heads, options) end
---@param width integer
---@param heads integer
---@param options? { causal?: boolean, groups?: integer, bias?: boolean, dropout?: number, rotary?: boolean|number, hidden?: integer, activation?: "gelu_tanh"|"gelu"|"relu"|"silu", norm?: "layer"|"rms" }
---@return flow.module
function nn.transformer_block(width, heads, options) end
---@param model flow.module
---@param options? { rank?: integer, alpha?: number, targets?: string[] }
---@return flow.module
function nn.lora(model, options) end
---@param model flow.module
---@return flow.module
function nn.merge_lora(model) end
---@param logits flow.tensor
---@param labels flow.tensor
---@param options? { ignore?: integer, reduction?: "mean"|"sum"|"none" }
---@return flow.tensor loss
function nn.cross_entropy(logits, labels, options) end
---@param logs flow.tensor
---@param labels flow.tensor
---@param options? { reduction?: "mean"|"sum"|"none" }
---@return flow.tensor loss
function nn.nll_loss(logs, labels, options) end
---@param predicted flow.tensor
---@param expected flow.tensor
---@param options? { reduction?: "mean"|"sum"|"none" }
---@return flow.tensor loss
function nn.mse_loss(predicted, expected, options) end
---@param predicted flow.tensor
---@param expected flow.tensor
---@param options? { reduction?: "mean"|"sum"|"none" }
---@return flow.tensor loss
function nn.l1_loss(predicted, expected, options) end
---@param logits flow.tensor
---@param targets flow.tensor
---@param options? { reduction?: "mean"|"sum"|"none" }
---@return flow.tensor loss
function nn.bce_with_logits(logits, targets, options) end
---@param f function
---@return flow.tensor
function nn.checkpoint(f, ...) end

---@class flow.models
local models = {}
---@param options { vocabulary: integer, context?: integer, width?: integer, heads?: integer, layers?: integer, dropout?: number, tied?: boolean, rotary?: boolean|number, checkpoint?: boolean }
---@return flow.gpt
function models.gpt(options) end

---@class flow.gpt: flow.module
local gpt = {}
---@param tokens flow.tensor [batch, t]
---@param targets flow.tensor [batch, t]
---@return flow.tensor
function gpt:loss(tokens, targets) end
---@param prompt integer[]|integer[][]|flow.tensor
---@param count integer of tokens
---@param options? { temperature?: number, top?: integer, seed?: integer, dtype?: "f32"|"bf16"|"f16", cache?: boolean }
---@return integer[]|integer[][] tokens of each prompt
function gpt:generate(prompt, count, options) end

---@class flow.optimizer
local optimizer = {}
---@param scale? number|flow.tensor
function optimizer:step(scale) end
function optimizer:zero_grad() end
---@return number
function optimizer:lr() end
---@param lr number
function optimizer:set_lr(lr) end
---@return table
function optimizer:state() end
---@param state table
---@return flow.optimizer itself
function optimizer:load(state) end

---@class flow.optim
local optim = {}
---@param model flow.module|flow.tensor[]|table[]
---@param options? { lr?: number, beta1?: number, beta2?: number, eps?: number, weight_decay?: number }
---@return flow.optimizer
function optim.adamw(model, options) end
---@param model flow.module|flow.tensor[]|table[]
---@param options? { lr?: number, momentum?: number, dampening?: number, weight_decay?: number, nesterov?: boolean }
---@return flow.optimizer
function optim.sgd(model, options) end
---@param comm flow.comm
---@param make fun(model: any, options: table): flow.optimizer such as flow.optim.adamw
---@param model flow.module|flow.tensor[]|table[]
---@param options? table the options of the optimizer
---@return flow.optimizer
function optim.sharded(comm, make, model, options) end
---@param model flow.module|flow.tensor[]
---@param limit number
---@return number|flow.tensor norm the norm before; on a GPU a tensor
function optim.clip_grad_norm(model, limit) end
---@param model flow.module|flow.tensor[]
---@param limit number
---@return flow.tensor factor for opt:step(factor)
---@return flow.tensor norm
function optim.clip_grad_factor(model, limit) end
---@param options { lr: number, warmup?: integer, total?: integer, min_lr?: number }
---@return fun(step: integer): number
function optim.cosine(options) end
---@param options { lr: number, warmup?: integer, total?: integer, min_lr?: number }
---@return fun(step: integer): number
function optim.linear(options) end

---@class flow.metrics
local metrics = {}
---@param predicted flow.tensor|integer[]
---@param expected flow.tensor|integer[]
---@return number share
function metrics.accuracy(predicted, expected) end
---@param predicted flow.tensor|integer[]
---@param expected flow.tensor|integer[]
---@param classes integer
---@return integer[][] counts counts[expected][predicted]
function metrics.confusion(predicted, expected, classes) end
---@param counts integer[][]
---@param first? integer the number shown for label 1
---@return flow.tensor picture [height, width, 3]
function metrics.confusion_image(counts, first) end

return flow
