#include "engine/plan/worker_selector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace flow {

namespace {

constexpr size_t kTextMax = 1000;
constexpr int kDepthMax = 50;
constexpr size_t kKnownMax = 256;  // expressions that a thread caches

bool is_word(char c) {
  bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_letter || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '/' ||
         c == ':';
}

bool is_reserved(std::string_view word) { return word == "and" || word == "or" || word == "not"; }

}  // namespace

const std::string* label_of(const Labels& labels, std::string_view name) {
  auto found = std::find_if(labels.begin(), labels.end(),
                            [&](const auto& label) { return label.first == name; });
  return found == labels.end() ? nullptr : &found->second;
}

class WorkerSelectorParser {
 public:
  explicit WorkerSelectorParser(std::string_view text) : text_(text) {}

  Result<WorkerSelector> parse() {
    if (text_.size() > kTextMax)
      return user_error(fmt::format("has {} letters, and may have {}", text_.size(), kTextMax));
    next();
    either(0);
    if (error_.empty() && (is_quoted_ || !token_.empty())) fail("`and`, `or` or the end");
    if (!error_.empty()) return user_error(error_);
    return std::move(selector_);
  }

 private:
  using Op = WorkerSelector::Op;

  /// The next token; empty at the end.
  void next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n'))
      at_++;
    begin_ = at_;
    is_quoted_ = false;
    token_.clear();
    if (at_ == text_.size()) return;
    char first = text_[at_];
    if (first == '"' || first == '\'') return quoted(first);
    size_t length = 1;
    if (is_word(first)) {
      while (at_ + length < text_.size() && is_word(text_[at_ + length])) length++;
    } else if (text_.substr(at_, 2) == "==" || text_.substr(at_, 2) == "!=") {
      length = 2;
    }
    token_ = text_.substr(at_, length);
    at_ += length;
  }

  void quoted(char mark) {
    size_t end = text_.find(mark, at_ + 1);
    if (end == std::string_view::npos) {
      error_ = fmt::format("lacks the closing {} of the text that begins at character {}", mark,
                           at_ + 1);
      end = text_.size() - 1;
    }
    token_ = text_.substr(at_ + 1, end - at_ - 1);
    is_quoted_ = true;
    at_ = end + 1;
  }

  bool is_at(std::string_view word) const { return !is_quoted_ && token_ == word; }
  bool is_at_value() const {
    return is_quoted_ || (!token_.empty() && is_word(token_[0]) && !is_reserved(token_));
  }

  void fail(std::string_view wanted) {
    if (!error_.empty()) return;
    bool is_end = token_.empty() && !is_quoted_;
    std::string found = is_end ? "it ends" : fmt::format("there is `{}`", token_);
    error_ = fmt::format("has to have {} at letter {}, where {}", wanted, begin_ + 1, found);
  }

  void add(Op op, std::string name = "", std::string value = "") {
    selector_.steps_.push_back({op, std::move(name), std::move(value)});
  }

  void either(int depth) {
    both(depth);
    while (error_.empty() && is_at("or")) {
      next();
      both(depth);
      add(Op::either);
    }
  }
  void both(int depth) {
    one(depth);
    while (error_.empty() && is_at("and")) {
      next();
      one(depth);
      add(Op::both);
    }
  }
  void one(int depth) {
    if (!error_.empty()) return;
    if (depth > kDepthMax) {
      error_ = fmt::format("is nested more than {} deep", kDepthMax);
    } else if (is_at("not")) {
      next();
      one(depth + 1);
      add(Op::negate);
    } else if (is_at("(")) {
      next();
      either(depth + 1);
      if (!is_at(")")) return fail("`)`");
      next();
    } else {
      label();
    }
  }
  void label() {
    if (is_quoted_ || !is_at_value()) return fail("the name of a label");
    std::string name = token_;
    next();
    bool is_equal = is_at("==") || is_at("=");
    if (!is_equal && !is_at("!=")) return add(Op::has, std::move(name));
    Op op = is_equal ? Op::equals : Op::differs;
    next();
    if (!is_at_value()) return fail("a value, a word or in quotes,");
    add(op, std::move(name), token_);
    next();
  }

  const std::string_view text_;
  size_t at_ = 0, begin_ = 0;
  std::string token_;
  bool is_quoted_ = false;
  std::string error_;
  WorkerSelector selector_;
};

Result<WorkerSelector> WorkerSelector::parse(std::string_view text) {
  return WorkerSelectorParser(text).parse();
}

bool WorkerSelector::matches(const Labels& labels) const {
  std::vector<bool> found;
  auto take = [&] {
    bool last = found.back();
    found.pop_back();
    return last;
  };
  for (const Step& step : steps_) {
    const std::string* value = nullptr;
    bool is_label = step.op == Op::has || step.op == Op::equals || step.op == Op::differs;
    if (is_label) value = label_of(labels, step.name);
    switch (step.op) {
      case Op::has:
        found.push_back(value != nullptr);
        break;
      case Op::equals:
        found.push_back(value != nullptr && *value == step.value);
        break;
      case Op::differs:
        found.push_back(value == nullptr || *value != step.value);
        break;
      case Op::negate:
        found.push_back(!take());
        break;
      case Op::both:
      case Op::either: {
        bool right = take(), left = take();
        found.push_back(step.op == Op::both ? left && right : left || right);
        break;
      }
    }
  }
  return !found.empty() && found.back();
}

// Called by the scheduler for each worker in each turn.
bool matches_selector(const std::string& where, const Labels& labels) {
  if (where.empty()) return true;
  static thread_local std::map<std::string, WorkerSelector> known;
  auto found = known.find(where);
  if (found == known.end()) {
    auto parsed = WorkerSelector::parse(where);
    if (known.size() >= kKnownMax) known.clear();
    found = known.emplace(where, parsed.ok() ? std::move(*parsed) : WorkerSelector()).first;
  }
  return found->second.matches(labels);
}

}  // namespace flow
