// Checkpoints that are written in the background of an attempt: retention, errors and files.
#include "engine/executor/checkpoints.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "engine/base/files.hpp"

using namespace flow;

namespace fs = std::filesystem;

namespace {

Value tensor_of(char fill, size_t bytes) {
  Tensor tensor;
  tensor.dtype = DType::u8;
  tensor.shape = {static_cast<int64_t>(bytes)};
  tensor.data = std::make_shared<const std::string>(std::string(bytes, fill));
  return Value(std::move(tensor));
}

Value state_of(int64_t step, size_t bytes = 1000) {
  return Value::map(
      {{"step", step}, {"model", Value::list({tensor_of(static_cast<char>('a' + step), bytes)})}});
}

int64_t step_of(const Value& state) { return state.find("step")->as_integer(); }

std::string content_of(const Value& state) {
  return std::string(*state.find("model")->as_table().list[0].as_tensor().data);
}

/// A state folder, and a database that can delay its writers.
struct TempFolder {
  std::string folder;
  std::atomic<bool> holds{false}, refuses{false};
  std::mutex mutex;
  std::vector<std::string> rows;
  int targets = 0;  // made since the newest begin()
  Checkpoints checkpoints;

  static std::string make_folder() {
    std::string name = (fs::temp_directory_path() / "flow-checkpoints-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    return name;
  }
  explicit TempFolder(std::string where = make_folder()) : folder(where), checkpoints(where) {}
  ~TempFolder() {
    std::error_code error;
    fs::remove_all(folder, error);
  }
  void begin(const std::string& row = "", const std::string& mark = "1-1") {
    auto commit = [this](const std::string& each, const Checkpoints::Blobs&) {
      while (holds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (refuses) return false;
      std::lock_guard lock(mutex);
      rows.push_back(each);
      return true;
    };
    targets = 0;
    checkpoints.begin(row, [this, mark, commit]() -> Checkpoints::Target {
      targets++;
      return {"checkpoints/run/train.0-abc", mark, commit};
    });
  }
  size_t row_count() {
    std::lock_guard lock(mutex);
    return rows.size();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(folder, error))
      if (entry.is_regular_file()) names.push_back(entry.path().filename().string());
    return names;
  }
  Value newest() {
    auto state = checkpoints.newest();
    REQUIRE(state.ok());
    REQUIRE(state->has_value());
    return **state;
  }
};

}  // namespace

TEST_CASE("a state is restored from its file, and only the newest file is kept") {
  TempFolder temp;
  temp.begin();
  for (int64_t step : {1, 2, 3}) {
    REQUIRE(temp.checkpoints.save(state_of(step), {}).ok());
    REQUIRE(temp.checkpoints.finish().ok());
  }
  CHECK(temp.files() == std::vector<std::string>{"1-1-3.safetensors"});
  CHECK(step_of(temp.newest()) == 3);
  CHECK(content_of(temp.newest()) == std::string(1000, 'd'));
  std::string row = temp.rows.back();
  temp.begin(row, "1-2");  // the next attempt
  CHECK(step_of(temp.newest()) == 3);
  REQUIRE(temp.checkpoints.save(state_of(4), {}).ok());
  REQUIRE(temp.checkpoints.finish().ok());
  CHECK(temp.files() == std::vector<std::string>{"1-2-1.safetensors"});
}

TEST_CASE("a checkpoint is not written or removed behind a link out of the state") {
  TempFolder temp, outside;
  std::ofstream(outside.folder + "/mine") << "kept";
  REQUIRE(make_dirs(temp.folder + "/checkpoints/run").ok());
  fs::create_directory_symlink(outside.folder, temp.folder + "/checkpoints/run/train.0-abc");
  temp.begin();
  REQUIRE(temp.checkpoints.save(state_of(1), {}).ok());
  Status written = temp.checkpoints.finish();
  REQUIRE_FALSE(written.ok());
  CHECK_THAT(written.error().message, Catch::Contains("a symbolic link leads out of"));
  CHECK(outside.files() == std::vector<std::string>{"mine"});
}

TEST_CASE("during a write a newer checkpoint replaces the waiting one") {
  TempFolder temp;
  temp.begin();
  temp.holds = true;
  for (int64_t step = 0; step < 20; step++) REQUIRE(temp.checkpoints.save(state_of(step), {}).ok());
  temp.holds = false;
  REQUIRE(temp.checkpoints.finish().ok());
  CHECK(step_of(temp.newest()) == 19);
  CHECK(temp.row_count() <= 3);
  CHECK(temp.files().size() == 1);
}

TEST_CASE("a state without tensors is a row and replaces a file") {
  TempFolder temp;
  temp.begin();
  REQUIRE(temp.checkpoints.save(state_of(1), {}).ok());
  REQUIRE(temp.checkpoints.finish().ok());
  REQUIRE(temp.checkpoints.save(Value::map({{"step", 2}}), {}).ok());
  REQUIRE(temp.checkpoints.finish().ok());
  CHECK(step_of(temp.newest()) == 2);
  CHECK(temp.files().empty());
}

TEST_CASE("a flush returns when all pending checkpoints are written") {
  TempFolder temp;
  temp.begin();
  bool is_called_at_once = false;
  temp.checkpoints.when_idle([&] { is_called_at_once = true; });
  CHECK(is_called_at_once);
  temp.holds = true;
  std::promise<size_t> written_rows;
  for (int64_t step : {1, 2}) REQUIRE(temp.checkpoints.save(state_of(step), {}).ok());
  temp.checkpoints.when_idle([&] { written_rows.set_value(temp.row_count()); });
  std::future<size_t> rows = written_rows.get_future();
  CHECK(rows.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  temp.holds = false;
  REQUIRE(rows.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  CHECK(rows.get() == temp.row_count());
  CHECK(step_of(temp.newest()) == 2);
}

TEST_CASE("a dropped checkpoint is neither committed nor left on the disk") {
  TempFolder temp;
  for (int attempt = 1; attempt <= 20; attempt++) {
    temp.begin("", "1-" + std::to_string(attempt));
    size_t before = temp.row_count();
    REQUIRE(temp.checkpoints.save(state_of(1, 8 << 20), {}).ok());
    if (attempt % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(attempt));
    temp.checkpoints.drop();
    CHECK(temp.row_count() <= before + 1);
    size_t unfinished = 0;
    for (const std::string& name : temp.files()) unfinished += name.ends_with(".tmp");
    CHECK(unfinished == 0);
  }
  temp.begin("", "1-99");
  REQUIRE(temp.checkpoints.save(state_of(5), {}).ok());
  REQUIRE(temp.checkpoints.finish().ok());
  CHECK(temp.files() == std::vector<std::string>{"1-99-1.safetensors"});
  CHECK(step_of(temp.newest()) == 5);
}

TEST_CASE("the first checkpoint of an attempt makes its target") {
  TempFolder temp;
  temp.begin();
  REQUIRE(temp.checkpoints.finish().ok());
  temp.checkpoints.drop();
  CHECK(temp.targets == 0);
  temp.begin("", "1-2");
  for (int step = 1; step <= 3; step++) {
    REQUIRE(temp.checkpoints.save(state_of(step), {}).ok());
    REQUIRE(temp.checkpoints.finish().ok());
  }
  CHECK(temp.targets == 1);
  CHECK(temp.files() == std::vector<std::string>{"1-2-3.safetensors"});
  temp.begin("", "1-3");
  REQUIRE(temp.checkpoints.save(state_of(4), {}).ok());
  REQUIRE(temp.checkpoints.finish().ok());
  CHECK(temp.targets == 1);
  CHECK(temp.files() == std::vector<std::string>{"1-3-1.safetensors"});
}

TEST_CASE("a write error is reported once by the next call, and the older state is kept") {
  TempFolder temp;
  temp.begin();
  REQUIRE(temp.checkpoints.save(state_of(1), {}).ok());
  REQUIRE(temp.checkpoints.finish().ok());
  fs::path below = fs::path(temp.folder) / "checkpoints/run/train.0-abc";
  fs::create_directory(below / "1-1-2.safetensors.tmp");  // an obstacle
  REQUIRE(temp.checkpoints.save(state_of(2), {}).ok());
  Status failed = temp.checkpoints.finish();
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().kind == ErrorKind::task);
  CHECK_THAT(failed.error().message,
             Catch::StartsWith("a checkpoint could not be written: cannot create"));
  CHECK(temp.checkpoints.error().ok());
  CHECK(step_of(temp.newest()) == 1);
}

TEST_CASE("an attempt that lost its lease keeps no checkpoint") {
  TempFolder temp;
  temp.begin();
  temp.refuses = true;
  REQUIRE(temp.checkpoints.save(state_of(1), {}).ok());
  Status fenced = temp.checkpoints.finish();
  REQUIRE_FALSE(fenced.ok());
  CHECK(fenced.error().kind == ErrorKind::environment);
  CHECK_FALSE(temp.checkpoints.save(state_of(2), {}).ok());
  CHECK(temp.files().empty());
}

TEST_CASE("a damaged file and a missing one are reported") {
  TempFolder temp;
  temp.begin();
  REQUIRE(temp.checkpoints.save(state_of(1), {}).ok());
  REQUIRE(temp.checkpoints.finish().ok());
  fs::path file = fs::path(temp.folder) / "checkpoints/run/train.0-abc/1-1-1.safetensors";
  auto size = static_cast<std::streamoff>(fs::file_size(file));
  std::fstream(file, std::ios::in | std::ios::out).seekp(size - 1).put('!');
  Error damaged = temp.checkpoints.newest().error();
  CHECK_THAT(damaged.message, Catch::Contains("is damaged") && Catch::Contains("--fresh"));
  CHECK(damaged.kind == ErrorKind::user);  // no other attempt will find it intact
  fs::remove(file);
  CHECK_THAT(temp.checkpoints.newest().error().message, Catch::Contains("is not there any more"));
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  CHECK_THAT(temp.checkpoints.newest().error().message, Catch::Contains("is not there any more"));
}
