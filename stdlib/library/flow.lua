---@meta flow

-- What scripts can call, for editors: lua-language-server completes and checks by it. It is never loaded.

---@class flow
---@field null flow.null a JSON null; in a list it keeps its place, where nil would not
---@field param flow.params
---@field data flow.data
---@field text flow.text
---@field table flow.table
---@field json flow.json
---@field fs flow.fs
---@field image flow.image
---@field nn flow.nn
---@field optim flow.optim
---@field metrics flow.metrics
local flow = {}

---@class flow.null

-- ---- definitions

---@class flow.retries
---@field max? integer failures of the task's own that are tried again
---@field backoff? string|number before the first retry, "1s"
---@field factor? number of the backoff, from retry to retry
---@field cap? string|number of the backoff, "1m"
---@field oom? { max: integer, memory: string } after running out of memory: with that much more, "x2"
---@field infra? integer losses that are no fault of the task's

---@class flow.options
---@field cpus? integer slots that an attempt takes, of --jobs in all
---@field memory? string|integer "2G": beyond it the attempt fails as out of memory
---@field retries? integer|flow.retries
---@field timeout? string|number of an attempt, "10m"
---@field cache? boolean|string false: runs in every run; a string: a salt
---@field priority? integer higher starts first
---@field queue? string
---@field env? table<string, string|flow.secret> variables for the attempt
---@field seed? integer|string enters ctx.seed
---@field ranks? integer|{ min: integer, max: integer }
---@field gpus? number
---@field gpu_memory? string|integer
---@field gpu? string
---@field where? string

---@class flow.shell_options: flow.options
---@field command string run by `bash -euo pipefail -c`, with {placeholders}
---@field args? string[] names of positional arguments
---@field outputs? table<string, string> files that must be there after exit 0; a glob is a list
---@field shell? string[] { "sh", "-eu", "-c" }
---@field stage? "copy" gives writable copies of inputs

---@class flow.service_options: flow.options
---@field port? integer 0 takes any free one
---@field batch? { max?: integer, wait?: string|number }

---@class flow.secret

---@class flow.handle a future result; indexing gives a handle to a part
---@field [any] flow.handle
local handle = {}
---@param ... flow.handle
---@return flow.handle itself
function handle:after(...) end
---@param field string
---@return flow.handle list that field of every item
function handle:each(field) end
---@param name string a field with a method's name
---@return flow.handle
function handle:part(name) end
---@param n integer how many instances of a map run at once
---@return flow.handle itself
function handle:limit(n) end

---@alias flow.callable fun(...): flow.handle

---@param name string letters, digits, _ . -; unique in its file
---@param options flow.options
---@param body fun(ctx: flow.context, ...): any
---@return flow.callable
---@overload fun(name: string, body: fun(ctx: flow.context, ...): any): flow.callable
function flow.task(name, options, body) end

---@param name string
---@param options flow.shell_options
---@return flow.callable
function flow.shell(name, options) end

---A task whose body calls tasks and returns handles; it runs once, to its end.
---@param name string
---@param options flow.options
---@param body fun(ctx: flow.context, ...): any
---@return flow.callable
---@overload fun(name: string, body: fun(ctx: flow.context, ...): any): flow.callable
function flow.dynamic(name, options, body) end

---A long-lived task that answers the Open Inference Protocol v2 over HTTP.
---@param name string the model's
---@param options flow.service_options
---@param body fun(ctx: flow.context, ...): { predict: fun(inputs: table<string, flow.tensor>): table }
---@return flow.callable
---@overload fun(name: string, body: fun(ctx: flow.context, ...): { predict: function }): flow.callable
function flow.service(name, options, body) end

---A task that the embedding program defined.
---@param name string
---@param options? flow.options
---@return flow.callable
function flow.native(name, options) end

---@class flow.pipeline

---@param name string
---@param parameters table<string, flow.param>
---@param body fun(p: table): any
---@return flow.callable pipeline the script returns it; called in another's body it is inlined
function flow.pipeline(name, parameters, body) end

---`task(ctx, item, …)` for each item; a handle to the list of results, in order.
---@param task flow.callable
---@param list table|flow.handle
---@return flow.handle
function flow.map(task, list, ...) end

---@param condition flow.handle|boolean
---@param taken fun(): any
---@param otherwise? fun(): any
---@return flow.handle what the branch that ran returned
function flow.when(condition, taken, otherwise) end

---@param path string a fixed file beside the script
---@return any
function flow.file(path) end

---@param name string a variable of the submitter's environment, for the option `env`; never stored
---@return flow.secret
function flow.env(name) end

-- ---- parameters

---@class flow.param
---@class flow.param_options
---@field default? any without it the parameter is required
---@field help? string
---@field min? number
---@field max? number
---@field pattern? string
---@field of? string of a list: its items' type

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
---@field dir string a folder of this attempt
---@field seed integer from the key; math.random starts from it
---@field stopping boolean save and end
local context = {}
---@param format string
function context:log(format, ...) end
---@param fraction number 0 to 1
---@param metrics? table<string, number>
function context:progress(fraction, metrics) end
---@param name string
---@param value number
---@param step? integer
function context:metric(name, value, step) end
---@param state any durable when it returns; ends the attempt if ctx.stopping
function context:checkpoint(state) end
---@return any state the last checkpoint of this node and key, or nil
function context:restore() end
---@generic T
---@param name string
---@param body fun(...): T called once: later attempts get its result
---@return T
function context:step(name, body, ...) end
---@param signal string
---@param options? { timeout: string|number }
---@return any value nil, "timeout" after the timeout
---@return string? why
function context:wait(signal, options) end
---@param name string a file or folder below ctx.dir
---@return string file as a value
function context:file(name) end

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
---@return table[] values one a line
function data.jsonl(path) end
---@param path string .gz compresses
---@param list table
function data.write_jsonl(path, list) end
---@param path string IDX, as of MNIST
---@return flow.tensor
function data.idx(path) end
---@param path string
---@return flow.tensor
function data.npy(path) end
---@param path string
---@param x flow.tensor
function data.write_npy(path, x) end
---Each of 1..n once, shuffled, `size` at a time.
---@param n integer
---@param size integer
---@param seed? integer
---@return fun(): flow.tensor
function data.batches(n, size, seed) end

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
---@param x flow.tensor [height, width] or [height, width, 3]; u8, or floats of 0 to 1
function image.png(path, x) end
---@param path string
---@param x flow.tensor
function image.ppm(path, x) end

-- ---- tensors

---@alias flow.dtype "f32"|"f64"|"i32"|"i64"|"u8"|"bool"

---@class flow.tensor 1-based; x[{ a, b }] is a range of the first dimension
---@field shape integer[]
---@field dtype flow.dtype
---@field [any] any
---@operator add: flow.tensor
---@operator sub: flow.tensor
---@operator mul: flow.tensor
---@operator div: flow.tensor
---@operator pow: flow.tensor
---@operator unm: flow.tensor
---@operator len: integer
local tensor = {}

---@param lists table|number
---@param type? flow.dtype
---@return flow.tensor
function flow.tensor(lists, type) end
---@return flow.tensor
function flow.zeros(...) end
---@return flow.tensor
function flow.ones(...) end
---@param shape integer[]
---@param value number
---@param type? flow.dtype
---@return flow.tensor
function flow.full(shape, value, type) end
---@return flow.tensor x uniform in 0..1
function flow.rand(...) end
---@return flow.tensor x normal
function flow.randn(...) end
---@param first number
---@param last? number
---@param step? number
---@return flow.tensor
function flow.arange(first, last, step) end
---@param list flow.tensor[]
---@param dimension? integer
---@return flow.tensor
function flow.cat(list, dimension) end
---@param list flow.tensor[]
---@param dimension? integer
---@return flow.tensor
function flow.stack(list, dimension) end
---@param x any
---@return boolean
function flow.is_tensor(x) end

---@param other flow.tensor
---@return flow.tensor
function tensor:matmul(other) end
---@return flow.tensor
function tensor:t() end
---@return flow.tensor
function tensor:reshape(...) end
---@param type flow.dtype
---@return flow.tensor
function tensor:to(type) end
---@return flow.tensor
function tensor:clone() end
---@return number
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
---@param dimension? integer
---@return flow.tensor
function tensor:sum(dimension) end
---@param dimension? integer
---@return flow.tensor
function tensor:mean(dimension) end
---@param dimension? integer
---@return flow.tensor
function tensor:max(dimension) end
---@param dimension? integer
---@return flow.tensor
function tensor:min(dimension) end
---@param dimension? integer
---@return flow.tensor
function tensor:argmax(dimension) end
---@param dimension? integer
---@return flow.tensor
function tensor:argmin(dimension) end
---@return flow.tensor
function tensor:softmax() end
---@return flow.tensor
function tensor:log_softmax() end
---@param labels flow.tensor of 1..classes
---@return number loss
---@return flow.tensor gradient
function tensor:cross_entropy(labels) end

-- ---- networks

---@class flow.layer
local layer = {}
---@param x flow.tensor
---@return flow.tensor
function layer:forward(x) end
---@param grad flow.tensor
---@return flow.tensor grad with regard to the input
function layer:backward(grad) end
---@return flow.tensor[]
function layer:parameters() end
---@return flow.tensor[]
function layer:gradients() end
function layer:zero_grad() end
---@return flow.tensor[] state what crosses an edge or goes into a checkpoint
function layer:state() end
---@param state flow.tensor[]
---@return flow.layer itself
function layer:load(state) end

---@class flow.nn
local nn = {}
---@param inputs integer
---@param outputs integer
---@return flow.layer
function nn.linear(inputs, outputs) end
---@return flow.layer
function nn.relu() end
---@return flow.layer
function nn.tanh() end
---@return flow.layer
function nn.sigmoid() end
---@param layers flow.layer[]
---@return flow.layer
function nn.sequential(layers) end
---@param logits flow.tensor [n, classes]
---@param labels flow.tensor [n] of 1..classes
---@return number loss the mean
---@return flow.tensor gradient
function nn.cross_entropy(logits, labels) end

---@class flow.optimizer
local optimizer = {}
function optimizer:step() end
function optimizer:zero_grad() end
---@return table
function optimizer:state() end
---@param state table
---@return flow.optimizer itself
function optimizer:load(state) end

---@class flow.optim
local optim = {}
---@param model flow.layer
---@param options? { lr?: number, beta1?: number, beta2?: number, eps?: number, weight_decay?: number }
---@return flow.optimizer
function optim.adamw(model, options) end

---@class flow.metrics
local metrics = {}
---@param predicted flow.tensor|integer[]
---@param expected flow.tensor|integer[]
---@return number share
function metrics.accuracy(predicted, expected) end
---@param predicted flow.tensor|integer[]
---@param expected flow.tensor|integer[]
---@param classes integer
---@return integer[][] counts [expected][predicted]
function metrics.confusion(predicted, expected, classes) end
---@param counts integer[][]
---@param first? integer the number shown for label 1
---@return flow.tensor picture [height, width, 3]
function metrics.confusion_picture(counts, first) end

return flow
