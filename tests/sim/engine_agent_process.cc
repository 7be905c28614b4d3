#include "tests/sim/engine_agent_process.hpp"

#include <utility>

#include "tests/sim/engine_head.hpp"
#include "tests/sim/engine_plans.hpp"
#include "tests/sim/engine_reports.hpp"

namespace flow::sim {

namespace {

constexpr int64_t kGraceMs = 50;
constexpr uint32_t kStrayReport = 12, kCrashInSend = 400;

}  // namespace

/// Passes reports on as the product's worker does, in batches and from its own thread.
class AgentProcess::Executors final : public Worker {
 public:
  Executors(AgentProcess& process, OnReport on_report)
      : process_(process),
        on_report_(std::move(on_report)),
        attempts_(process.world_, process.around_.durable, process.around_.memory,
                  [this](Report report) { add(std::move(report)); }) {}

  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override {
    for (AttemptOrder& order : orders) attempts_.stage(std::move(order), commit);
  }
  void release(uint64_t commit) override { attempts_.release(commit); }
  void exchange_addresses(const core::AttemptId& id,
                          const std::vector<std::string>& addresses) override {
    attempts_.exchange_addresses(id, addresses.size());
  }
  void stop(const core::AttemptId& id, bool) override { attempts_.stop(id); }
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override {
    attempts_.ack_saved(id, name, ok);
  }
  void drain(int64_t) override { attempts_.drain(); }
  void ack_logs(size_t) override {}
  std::vector<RankId> ranks() const { return attempts_.ranks(); }

 private:
  void add(Report report) {
    World& world = process_.world_;
    world.note(process_.info_.name + " reports " + report_text(report) + " of " +
               text_of(report.id));
    // The same report again, after some time, as from a copy that went another way.
    if (world.strikes(FaultKind::stray, kStrayReport))
      process_.around_.head.report_again(process_.info_.name, report);
    reports_.push_back(std::move(report));
    if (reports_.size() > 1) return;
    world.after(world.random.below(3), [this, alive = process_.is_alive_] {
      if (*alive) process_.enter([this] { on_report_(std::exchange(reports_, {})); });
    });
  }

  AgentProcess& process_;
  const OnReport on_report_;
  std::vector<Report> reports_;
  Attempts attempts_;
};

/// As that of the product's WorkerProcess.
class AgentProcess::Session final : public cluster::SessionUser {
 public:
  explicit Session(AgentProcess& process) : process_(process), is_alive_(process.is_alive_) {}
  void attach(std::shared_ptr<cluster::SessionLink> link) { link_ = std::move(link); }

  void on_open(const cluster::SessionPeer&) override {
    auto send = [link = link_, &process = process_, alive = is_alive_](std::string_view chunk) {
      if (!*alive) return;
      process.monitor_.from_agent(chunk, process.executors_->ranks());
      (void)link->send(chunk);
    };
    process_.monitor_.begin_session();
    process_.agent_->connect(send, link_->link(), link_->bulk(), "the head");
  }
  void on_message(std::string chunk) override {
    process_.monitor_.from_head(chunk, process_.around_.head.network().stamp_of_frame());
    if (!process_.agent_->on_message(chunk))
      throw BrokenPromise{"an agent rejects a message of its head"};
  }
  void on_suspect(const std::string&) override {}
  void on_recovered() override {}
  void on_end(cluster::EndKind, const Error& why) override {
    if (!*is_alive_) return;
    if (why.message.find("not a message") != std::string::npos)
      throw BrokenPromise{"a head rejects a message of an agent"};
    process_.world_.note(process_.info_.name + " has no session: " + why.message);
    process_.agent_->disconnect(why);
    Random& random = process_.world_.random;
    process_.connect_later(random.below(random.one_in(4) ? 900 : 60));
  }

 private:
  AgentProcess& process_;
  const std::shared_ptr<bool> is_alive_;
  std::shared_ptr<cluster::SessionLink> link_;
};

AgentProcess::AgentProcess(const WorkerWorld& around, const core::WorkerInfo& info,
                           std::shared_ptr<SimSpoolFolder> spool, core::Time clock_skew,
                           std::function<void()> on_end)
    : around_(around),
      world_(around.world),
      info_(info),
      spool_(std::move(spool)),
      clock_skew_(clock_skew),
      on_end_(std::move(on_end)),
      monitor_(world_, around.durable, info.name) {
  process_->host = info.name;
  process_->enter = [this](const auto& act) { enter(act); };
  process_->on_send = [this] {
    if (world_.strikes(FaultKind::worker_death, kCrashInSend)) throw WorkerCrash();
  };
  transport_ = around.head.network().transport(process_);
  enter([this] { start(); });
}

AgentProcess::~AgentProcess() { end(HowItEnds::exits); }

void AgentProcess::start() {
  sessions_ = std::make_unique<cluster::Sessions>(
      *transport_, session_options(), [](const std::string&) {}, false);
  cluster::WorkerAgent::Options options;
  options.spool_dir = std::string(kStateDir) + "/" + info_.name + "/spool";
  options.spool_folder = spool_;
  options.store = cluster::BlobCache::of_state(std::string(kStateDir) + "/" + info_.name, nullptr);
  options.worker = info_;
  options.head = kHeadAddress;
  options.clock = [this] { return world_.now() + clock_skew_; };
  options.machine = {};
  options.threads = 0;
  auto make = [this](Worker::OnReport on_report) -> Result<std::unique_ptr<Worker>> {
    auto executors = std::make_unique<Executors>(*this, std::move(on_report));
    executors_ = executors.get();
    return std::unique_ptr<Worker>(std::move(executors));
  };
  auto agent = cluster::WorkerAgent::start(std::move(options), make);
  if (!agent.ok()) {
    world_.note(info_.name + " does not start: " + agent.error().message);
    throw WorkerCrash();
  }
  agent_ = std::move(*agent);
  connect_later(0);
  tick_later();
}

// After a crash its objects are destroyed later: one of them may be what calls this.
void AgentProcess::enter(const std::function<void()>& act) {
  if (!process_->is_alive) return;
  if (is_entered_) return act();
  struct Entry {
    bool& is_entered;
    ~Entry() { is_entered = false; }
  } entry{is_entered_ = true};
  try {
    act();
    if (agent_ && world_.random.one_in(2)) agent_->run_jobs();
  } catch (const WorkerCrash&) {
    world_.note(info_.name + " crashes");
    *is_alive_ = false;
    around_.head.network().kill(*process_, false);
    on_end_();
  }
}

void AgentProcess::end(HowItEnds how) {
  process_->on_send = [] {};
  *is_alive_ = false;
  if (process_->is_alive && how != HowItEnds::exits)
    around_.head.network().kill(*process_, how == HowItEnds::machine_is_gone);
  agent_ = nullptr;
  sessions_ = nullptr;  // says goodbye
  if (process_->is_alive) around_.head.network().kill(*process_, true);
  transport_ = nullptr;
}

void AgentProcess::drain() {
  enter([this] { agent_->drain(kGraceMs, "it leaves"); });
}

void AgentProcess::fail_gpu(const std::string& uuid, bool is_dead) {
  enter([&] { agent_->gpu_failed(uuid, kGpuFault, is_dead); });
}

cluster::SessionOptions AgentProcess::session_options() const {
  cluster::SessionOptions options = around_.head.session_options();
  options.role = cluster::Role::worker;
  options.name = info_.name;
  return options;
}

void AgentProcess::connect_later(core::Time delay) {
  world_.after(delay, [this, alive = is_alive_] {
    if (*alive) enter([this] { connect(); });
  });
}

void AgentProcess::connect() {
  auto session = std::make_shared<Session>(*this);
  auto link = sessions_->connect(kHeadAddress, session);
  session->attach(*link);
}

void AgentProcess::tick_later() {
  world_.after(kTickMs, [this, alive = is_alive_] {
    if (!*alive) return;
    tick_later();
    enter([this] { sessions_->tick(); });
  });
}

}  // namespace flow::sim
