// The texts of the manual pages that the help of the program does not have.
#include "engine/cli/manual/manual_page.hpp"

namespace flow::cli {

namespace {

std::vector<VerbText> texts_of_runs() {
  return {
      {"run",
       "Runs the pipeline of a script to its end, and prints its progress. Each result is kept in "
       "the state before it is reported. A task whose code, inputs, command and seed are those of "
       "an earlier run is not run again.\n\n"
       "Ctrl-C gives running tasks the time of `--grace` to save their state; the run is then "
       "interrupted, and `flow resume` continues it. A second Ctrl-C ends at once. "
       "`flow run FILE --help` also lists the parameters of the pipeline.",
       {{"flow run train.lua --param epochs=3 --out results",
         "Run with a parameter, and copy the result"},
        {"flow run train.lua --workers 2", "Run with two workers on this machine"}},
       {"resume", "plan", "show", "why"}},
      {"resume",
       "Continues a run that was interrupted or killed, from its last committed results. Failed "
       "tasks get new attempts. A run that has succeeded is only shown. With `--code new` the "
       "script and the input files are read again, and what this changes runs again.",
       {{"flow resume", "Continue the last run"}},
       {"run", "retry"}},
      {"retry",
       "Runs the failed tasks of a run again, also those whose failure was ignored. With a task it "
       "runs this one again, even if it succeeded, and then what this changes.",
       {{"flow retry last", "Run all that failed in the last run again"}},
       {"resume", "why"}},
      {"serve",
       "Starts a new run with the plan, the code and the parameters of another one, under the same "
       "name. Only its services run: each other task must be in the cache, else the command names "
       "those that are not and exits with 2.",
       {{"flow serve prod --detach", "Start what the name `prod` serves again"}},
       {"deploy", "services", "stop"}},
      {"deploy",
       "As `flow serve`, under the given name. If that name is served, the new version takes over "
       "its traffic when it is ready, by the canary steps of its services, and the one before it "
       "is drained.",
       {{"flow deploy last --name prod --detach", "Put the last run behind the name `prod`"}},
       {"rollback", "services"}},
      {"rollback",
       "Serves the newest earlier run of the name that has the same services, has served and has "
       "succeeded. It gets all traffic at once. During a canary no run starts: the canary ends, "
       "and the version before has all traffic again.",
       {{"flow rollback prod --detach", "Return to the version before"}},
       {"deploy", "services"}},
      {"stop",
       "Ends an active run as Ctrl-C in its own command does: services answer the requests that "
       "they have accepted, and running tasks may save their state within the `--grace` of the "
       "run. The run has then succeeded if only services were left; else it is interrupted, and "
       "`flow resume` continues it. A name means all active runs of that name.",
       {{"flow stop prod", "Stop what is served as `prod`"}},
       {"cancel", "services", "resume"}},
      {"cancel",
       "Ends a run for good: its tasks are stopped, and it cannot be resumed. Its committed "
       "results stay in the cache.",
       {},
       {"run", "resume"}},
      {"signal",
       "Answers a task that waits in `ctx:wait(name)`. The value is `true` if none is given. A "
       "JSON string keeps its quotes.",
       {{"flow signal last approved '{\"by\": \"ann\"}'", "Answer with a value"}},
       {"show", "why"}},
      {"plan",
       "Prints for each node whether it is cached, runs and why, or is unknown and what it waits "
       "for. Nothing runs, and nothing is written.",
       {{"flow plan train.lua --param epochs=4", "See what a change of a parameter runs again"}},
       {"run", "lint"}},
  };
}

std::vector<VerbText> texts_of_views() {
  return {
      {"ls",
       "Prints one line per run of the state, oldest first. It needs no lock, and works while "
       "another `flow` runs.",
       {},
       {"show", "gc"}},
      {"show",
       "Prints a run, its tasks and its result. It works while the run is executed.",
       {{"flow show last --json", "Print the last run as one JSON object"}},
       {"ls", "get", "logs"}},
      {"ui",
       "Serves the runs of the state as a web page, and prints its link: the graph of a run, its "
       "tasks with errors and logs, a timeline of attempts, plots of metrics; also workers, "
       "services "
       "and what waits. The page updates itself, works next to other processes that use the state, "
       "and can cancel, stop, retry, signal and roll back. Ctrl-C ends it.\n\n"
       "A user with the link, which contains a token, can see the state and act on its runs. "
       "Beyond "
       "loopback the page needs TLS and keys.",
       {{"flow ui", "Show the runs in a browser"},
        {"flow ui --listen 127.0.0.1:8080", "The same at a fixed port"}},
       {"show", "ls", "why"}},
      {"report",
       "Writes runs as one HTML file, which can be mailed: the views of `flow ui` as they are now, "
       "what each task used, files and code with their digests, and where it ran; with several "
       "runs also their parameters, metrics and durations side by side. The file loads nothing "
       "from any host. `-o -` prints it.",
       {{"flow report last -o run.html", "Write a report of the last run"},
        {"flow report 20261128-101500-ab3cd4e last -o compared.html", "Compare two runs"}},
       {"ui", "export", "compare"}},
      {"top",
       "Follows a state on the whole screen: its runs, the tasks of one of them, its workers with "
       "their GPUs and the tasks that hold them, its services, and what waits for what. Keys "
       "choose a table, "
       "sort and filter it, cancel a run after a question, and send it a signal; `?` lists them. "
       "It reads the state with at most a fifth of a CPU "
       "and a low priority.\n\n"
       "Where the output is not a terminal, or with `--once`, it prints one frame as text; with "
       "`--json` everything as one object.",
       {{"flow top", "Follow the newest run that has not ended"},
        {"flow top --json", "Print everything as one JSON object"}},
       {"show", "nodes", "ui"}},
      {"services",
       "Prints what is served: for each service of an active run its version, URL, ready replicas, "
       "share of the traffic, requests per second, and the median and the 99th percentile of their "
       "duration over the last 10 s; below it a line per replica.",
       {},
       {"deploy", "stop", "show"}},
      {"get",
       "Prints the result of a run, or a part of it, as JSON. With `-o` it copies the files, the "
       "tensors and the rest of the result into a folder, or to S3, and prints where they are.",
       {{"flow get last report.rows[2]", "Print a part of the result"},
        {"flow get last -o results", "Copy all of it"}},
       {"run", "show"}},
      {"logs",
       "Prints what the tasks of a run logged and wrote. If no run has the given name, it is taken "
       "as a task of the last run. With `-f` it continues until the run ends; it exits with 3 if "
       "the process that executed the run has died.",
       {{"flow logs train -f", "Follow a task of the last run"}},
       {"show", "why"}},
      {"why",
       "Explains why a task waits, ran again or failed. If no run has the given name, it is taken "
       "as a task of the last run. For a task that is ready it says what prevents it on each "
       "machine, and which tasks hold that.",
       {{"flow why train", "Explain a task of the last run"}},
       {"logs", "diff"}},
      {"diff", "Prints what differs between two runs, task by task.", {}, {"why", "show"}},
      {"metrics",
       "Prints the series that tasks wrote by `ctx:metric`: one line per series, or with a task "
       "its "
       "points. A task from the cache has those of the run that computed it. `--csv` and "
       "`--tensorboard` write every point.",
       {{"flow metrics last train", "Print the points of a task"},
        {"flow metrics last --tensorboard logs", "Write event files for TensorBoard"}},
       {"compare", "show"}},
      {"compare",
       "Prints the parameters that differ between runs, with the last and the best value of each "
       "metric.",
       {{"flow compare last 20261128-101500-ab3cd4e --metric loss",
         "Compare the loss of two runs"}},
       {"metrics", "diff"}},
      {"cost",
       "Prints what the tasks of a run held and used, and what that costs by the prices in "
       "flow.toml: CPU-hours, memory and GPU-hours, the part of failed and lost attempts, and what "
       "the cache saved. Without prices it prints the hours only.",
       {{"flow cost last", "Print the costs of the last run, by task"},
        {"flow cost --since 7d --by user", "Print those of a week, by user"}},
       {"advise", "show"}},
      {"advise",
       "Prints what would make the tasks of a run cheaper or faster, with the measured values: "
       "memory and CPUs that no attempt used, numbers of ranks, arguments that differ in every "
       "run, "
       "slow workers and stragglers. It compares the run with the 20 runs of its pipeline before.",
       {{"flow advise last", "Look for waste in the last run"}},
       {"cost", "why"}},
      {"graph",
       "Prints the graph of a script or of a run. The format `svg` needs the program `dot` of "
       "Graphviz.",
       {{"flow graph train.lua --format svg > graph.svg", "Draw the graph"}},
       {"plan"}},
      {"export",
       "Writes a run in a format that other programs read: `ro-crate` is a folder with the code, "
       "the "
       "files of all tasks and a description of the run (Provenance Run Crate 0.5); `wfformat` is "
       "the graph with run times as WfFormat 1.5; `openlineage` is one event per line for the "
       "begin "
       "and the end of the run and of each task, or posts these events to a URL. It works while "
       "the "
       "run is executed. `mlflow` makes a run of an MLflow tracking server, with parameters, "
       "metrics, tags and the files of the result as artifacts, or updates the one that an earlier "
       "export made; `tensorboard` writes the metrics as event files.",
       {{"flow export last --format ro-crate -o crate", "Archive the last run"},
        {"flow export last --format mlflow -o http://localhost:5000", "Make a run of MLflow"},
        {"flow export last --format openlineage -o http://localhost:5000", "Post its events"}},
       {"import", "get", "show"}},
      {"import",
       "Makes a pipeline from a workflow in WfFormat 1.5. A task with a command runs it; a task "
       "without one is a stand-in, which says so in its log, sleeps for its run time times "
       "`--scale`, and writes small files in place of its outputs. Files that the workflow only "
       "reads get a stand-in below `inputs`. The pipeline's parameters `stand_ins=true` and "
       "`scale` make every task a stand-in and change the factor.",
       {{"flow import blast.json -o blast --scale 0.01",
         "Make a pipeline whose stand-ins take a hundredth of their time"}},
       {"export", "run"}},
      {"trace",
       "Writes a run as a timeline in the Trace Event Format: each attempt in a slot of its "
       "worker, "
       "its staging, its function and its commit, its time in the queue, and arrows from task to "
       "task. Open the file at ui.perfetto.dev, which does not send it anywhere, or in "
       "chrome://tracing. It works while the run is executed.",
       {{"flow trace last -o trace.json", "Write the last run as a timeline"}},
       {"export", "show", "ui"}},
      {"lint",
       "Warns where a script seems to use a handle as if it were the value. Warnings do not change "
       "the exit code.",
       {},
       {"plan"}},
  };
}

std::vector<VerbText> texts_of_machines() {
  return {
      {"head",
       "Leads a cluster over a state until it is ended. It prints how workers join. Runs are "
       "started on the same machine over the same state, or from other machines with `--head` and "
       "`--secret-file`.",
       {{"flow head --listen 0.0.0.0:7117", "Lead a cluster on all interfaces of this machine"}},
       {"worker", "nodes", "run"}},
      {"worker",
       "Works for a head until it is ended, and joins it again after each loss of the connection. "
       "SIGTERM, SIGINT and SIGUSR2 give running tasks the time of `--drain` to save their state.",
       {{"flow worker --join head:7117 --secret-file secret", "Join a head"},
        {"flow worker --show", "Print what this machine would offer"}},
       {"head", "nodes"}},
      {"nodes",
       "Prints the workers of the head that writes the state, or of the head that `--head` names: "
       "what runs on them, and how much of each GPU each task has.",
       {},
       {"head", "worker"}},
      {"gc",
       "Forgets finished runs except the newest ones, those that a client still uses and those to "
       "which `flow rollback` would return, and frees what only they used.",
       {},
       {"ls"}},
      {"doctor",
       "Checks the executor, the state, the file system, CPUs, memory and its limits, the GPUs and "
       "their libraries, and says what is built in. It exits with 4 if a run could not work.",
       {},
       {"worker"}},
      {"init",
       "Writes a small pipeline that runs as it is, a `.gitignore`, and for editors with "
       "lua-language-server a `.luarc.json`. It overwrites nothing.",
       {{"flow init hello && flow run hello", "Begin"}},
       {"run"}},
      {"repl", "A prompt that evaluates Lua as a script sees it.", {}, {"run"}},
      {"completion",
       "Prints a completion script for a shell. The package of flow installs these scripts.",
       {{"eval \"$(flow completion bash)\"", "Complete in this shell"}},
       {"run"}},
      {"", "", {{"flow init hello && flow run hello", "Write a first pipeline, and run it"}}, {}},
  };
}

}  // namespace

const std::vector<VerbText>& verb_texts() {
  static const std::vector<VerbText> all = [] {
    std::vector<VerbText> texts = texts_of_runs();
    for (auto more : {texts_of_views(), texts_of_machines()})
      texts.insert(texts.end(), more.begin(), more.end());
    return texts;
  }();
  return all;
}

const std::string& program_description() {
  static const std::string text =
      "flow runs pipelines that are written in Lua: functions and shell commands, with the data "
      "that passes from one to the next. Each result is kept. A run that was killed continues "
      "where it stopped, and a second run repeats only what has changed.\n\n"
      "A RUN is given as its id, the start of an id if only one run begins with it, its name, or "
      "`last`. A script is given as a file, or as a folder with a `pipeline.lua`. A TIME is such "
      "as 500ms, 30s, 10m, 1h30m or 2d. Options end at `--`. Errors go to the standard error, as "
      "paragraphs that begin with `error:`.\n\n"
      "The guide, the references and examples are in share/doc/flow of the installation.";
  return text;
}

const TermTexts& exit_code_texts() {
  static const TermTexts texts = {
      {"0", "Done."},
      {"1", "A task failed, the run was cancelled, or it did not take over a served name."},
      {"2", "The script or the command line is wrong; nothing ran."},
      {"3", "Interrupted; `flow resume` continues."},
      {"4",
       "The state cannot be read or written, the head cannot be reached or rejects the secret or "
       "the version, a limit of the process is reached, or the machine lacks something."},
  };
  return texts;
}

const TermTexts& variable_texts() {
  static const TermTexts texts = {
      {"FLOW_STATE", "The state's folder, without `--state`."},
      {"FLOW_CONFIG",
       "A configuration that replaces `flow.toml` next to the script and in the home folder."},
      {"FLOW_PROFILE", "The profile of the configuration, without `--profile`."},
      {"FLOW_HEAD", "The head, without `--head`. `FLOW_STATE` is then ignored."},
      {"FLOW_JOBS", "CPU slots of a run, without `--jobs`."},
      {"FLOW_FETCH_RETRIES",
       "How often a failed transfer from or to a URL is tried again (default: 5)."},
      {"FLOW_FETCH_STALL", "How long a transfer may be without a byte (default: 30s)."},
      {"FLOW_FETCH_CONNECTIONS", "Parallel connections for one file at a URL (default: 4)."},
      {"AWS_...", "Credentials and endpoint of S3, such as AWS_ACCESS_KEY_ID."},
      {"SSL_CERT_FILE", "Certificates to trust."},
      {"OPENLINEAGE_URL, OPENLINEAGE_ENDPOINT",
       "Of `flow export --format openlineage`: the server without `-o`, and the path on a server "
       "whose URL has none (default: api/v1/lineage)."},
      {"OPENLINEAGE_API_KEY, OPENLINEAGE_NAMESPACE",
       "The key that this server wants, and the namespace of jobs (default: flow)."},
      {"MLFLOW_TRACKING_URI", "Of `flow export --format mlflow`: the server without `-o`."},
      {"MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN",
       "The name and the password, or the bearer token, that this server wants."},
      {"OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
       "The collector that gets the traces of runs, by OTLP over HTTP (default: none)."},
      {"OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TRACES_HEADERS",
       "Headers for it: `name=value,other=value`."},
      {"TRACEPARENT",
       "The span of which a run's trace is a part. With a collector, flow sets it for each process "
       "of an attempt."},
      {"FLOW_LINGER",
       "Of a run or of a task's `env`: how long flow waits for processes that a command left "
       "running (default: 5s)."},
      {"FLOW_SHARED_TENSORS",
       "Of a worker: `0` sends the tensors of services through sockets, and not in shared memory."},
      {"FLOW_COLLECTIVE_TIMEOUT",
       "Of a task's `env`: how long a rank waits in a collective (default: 10m)."},
      {"FLOW_WORKER_DIR",
       "The folder for workers on the nodes of Slurm (default: below /var/tmp)."},
      {"FLOW_CUBLASLT_LIB, FLOW_CUDNN_LIB, FLOW_NCCL_LIB, FLOW_NVRTC_LIB",
       "NVIDIA's libraries, if they are not where flow looks for them; `off` disables one."},
      {"FLOW_ATTENTION",
       "`own` computes attention on GPUs by flow's own kernels, and not by cuDNN."},
      {"FLOW_NVML_LIB", "NVIDIA's library for the state of GPUs, if the system does not find it."},
      {"FLOW_OLD_DRIVER",
       "Of a worker: `keep` uses GPUs whose driver is too old for flow's kernels, for commands."},
      {"FLOW_RUN, FLOW_TASK, FLOW_ATTEMPT, FLOW_SLOT",
       "Set by flow for each process of an attempt."},
  };
  return texts;
}

TermTexts file_texts(const std::string& verb) {
  TermTexts texts = {
      {".flow/",
       "The state: runs and results. It is the nearest one in the working directory or above, or a "
       "new one in the working directory, if neither `--state` nor `FLOW_STATE` names one."}};
  if (verb.empty() || verb == "worker")
    texts.emplace_back("/var/tmp/flow-worker-UID-NAME/",
                       "What a worker keeps, if `--dir` of `flow worker` names no other folder.");
  return texts;
}

}  // namespace flow::cli
