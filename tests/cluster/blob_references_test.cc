// Blobs that orders and reports refer to and that are transferred separately.
#include <catch2/catch.hpp>

#include "engine/blobs/checkpoint.hpp"
#include "engine/cluster/transfer/blob_references.hpp"

namespace flow::cluster {
namespace {

Tensor tensor_of(const std::string& text, std::vector<int64_t> shape) {
  Tensor tensor;
  tensor.digest = sha256(text);
  tensor.shape = std::move(shape);
  return tensor;
}

File file_of(const std::string& text, std::string origin = "") {
  File file;
  file.name = "f";
  file.size = text.size();
  file.digest = sha256(text);
  file.origin = std::move(origin);
  return file;
}

File folder_of(const std::vector<std::string>& texts, std::string origin = "") {
  File folder = file_of("listing", std::move(origin));
  folder.is_folder = true;
  for (const std::string& text : texts)
    folder.entries.push_back({"sub/" + text, false, text.size(), sha256(text)});
  return folder;
}

/// "a 12 origin file", in order; `names` are the texts of the digests.
std::vector<std::string> words_of(const std::vector<BlobReference>& all,
                                  const std::vector<std::string>& names) {
  std::vector<std::string> words;
  for (const BlobReference& each : all) {
    std::string name = "?";
    for (const std::string& text : names)
      if (sha256(text) == each.blob.digest) name = text;
    std::string size = each.blob.size ? std::to_string(*each.blob.size) : "-";
    words.push_back(name + " " + size + " " + each.origin + " " + each.file);
  }
  return words;
}

using Words = std::vector<std::string>;

TEST_CASE("an order refers to the blobs of its arguments, steps and checkpoint, each once") {
  AttemptOrder order;
  Tensor tensor = tensor_of("tensor", {3, 5});
  order.args = encode_value(Value::list(
      {Value(tensor), Value(file_of("large")), Value(file_of("small")),
       Value::map({{"deep", Value::list({Value(file_of("there", "/data/there.csv"))})}}),
       Value(folder_of({"one", "three"}, "/data/folder")), Value(tensor), Value("text")}));
  order.blobs.emplace_back(sha256("small"), "small");
  order.steps.emplace_back("step", encode_value(Value(file_of("of a step"))));
  order.signals.emplace_back("signal", encode_value(Value(true)));
  order.has_checkpoint = true;
  order.checkpoint = encode_checkpoint_row({std::nullopt, "checkpoints/r/t/1.st", sha256("saved")},
                                           Value::list({Value(file_of("beside"))}));
  CHECK(words_of(referenced_blobs(order),
                 {"tensor", "large", "there", "one", "three", "of a step", "saved", "beside"}) ==
        Words{"tensor 60  ", "large 5  ", "there 5 /data/there.csv ", "one 3 /data/folder/sub/one ",
              "three 5 /data/folder/sub/three ", "of a step 9  ", "beside 6  ",
              "saved -  checkpoints/r/t/1.st"});
  order = {};
  order.args = encode_value(Value::list({Value(1), Value("two")}));
  CHECK(referenced_blobs(order).empty());
}

Result<std::vector<BlobReference>> references_of(TaskFinished finished) {
  return referenced_blobs(Report{{}, 0, 0, std::move(finished)});
}

TEST_CASE("a report refers to the blobs of its result, checkpoint and dynamic calls") {
  TaskFinished finished;
  finished.value =
      encode_value(Value::list({Value(tensor_of("tensor", {})), Value(file_of("f1"))}));
  finished.blobs.emplace_back(sha256("f1"), "f1");
  PlanFragment fragment;
  fragment.nodes.resize(1);
  fragment.nodes[0].name = "call";
  fragment.nodes[0].args = Value::list({Value(file_of("of a call"))});
  fragment.result = Value(file_of("result"));
  finished.fragment = encode_fragment(fragment);
  auto references = references_of(finished);
  REQUIRE(references.ok());
  CHECK(words_of(*references, {"tensor", "result", "of a call"}) ==
        Words{"tensor 4  ", "result 6  ", "of a call 9  "});

  Report step{{}, 0, 0, StepReported{"step", encode_value(Value(file_of("of a step"))), {}}};
  CHECK(words_of(*referenced_blobs(step), {"of a step"}) == Words{"of a step 9  "});
  CheckpointReported saved;
  saved.value =
      encode_checkpoint_row({std::nullopt, "checkpoints/r/t/1.st", sha256("saved")}, Value());
  CHECK(words_of(*referenced_blobs(Report{{}, 0, 0, saved}), {"saved"}) ==
        Words{"saved -  checkpoints/r/t/1.st"});
  CHECK(referenced_blobs(Report{{}, 0, 0, LogLines{0, "line"}})->empty());
}

TEST_CASE("an invalid report is rejected") {
  TaskFinished finished;
  finished.value = "\xff";
  CHECK_FALSE(references_of(finished).ok());
  finished.value.clear();
  finished.fragment = "no fragment";
  CHECK_FALSE(references_of(finished).ok());
  finished.fragment.clear();
  finished.value = encode_value(Value(tensor_of("t", {INT64_MAX, 4})));
  CHECK_FALSE(references_of(finished).ok());
  for (const char* place :
       {"checkpoints/../LOCK", "/etc/passwd", "checkpoints//x", "objects/ab/cd", "checkpoints/"}) {
    CAPTURE(place);
    CheckpointReported saved;
    saved.value = encode_checkpoint_row({std::nullopt, place, sha256("x")}, Value());
    CHECK_FALSE(referenced_blobs(Report{{}, 0, 0, std::move(saved)}).ok());
  }
}

TEST_CASE("arguments for another machine do not refer to files that are read in place") {
  std::string args = encode_value(
      Value::list({Value(file_of("there", "/data/there.csv")), Value("text"),
                   Value::map({{"folder", Value(folder_of({"one"}, "/data/folder"))}, {"n", 1}})}));
  std::string same =
      encode_value(Value::list({Value(file_of("there")), Value("text"),
                                Value::map({{"folder", Value(folder_of({"one"}))}, {"n", 1}})}));
  CHECK(without_origins(args) == same);
  CHECK(without_origins(same) == same);
  CHECK(without_origins(encode_value(Value(1))) == encode_value(Value(1)));
}

}  // namespace
}  // namespace flow::cluster
