// Operands, the host's runner, and the comparison of results.
#include "tests/kernels/suite/suite.hpp"

#include <cstdlib>
#include <cstring>
#include <regex>

namespace flow::suite {
namespace {

constexpr unsigned char kPoison = 0x5c;

// Half a unit in the last place: the error of rounding to nearest.
double unit_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}
double tiny_of(DType dtype) {
  return dtype == DType::f64 ? 1e-300 : dtype == DType::f16 ? 0x1p-24 : 1e-37;
}

double rounded(DType dtype, double value) {
  return visit_float(dtype,
                     [&](auto type) { return convert<double>(convert<decltype(type)>(value)); });
}

}  // namespace

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::dense:
      return "dense";
    case Layout::shifted:
      return "shifted";
    case Layout::rows:
      return "rows";
    case Layout::gaps:
      return "gaps";
    case Layout::swapped:
      return "swapped";
    case Layout::heads:
      return "heads";
    case Layout::backwards:
      return "backwards";
    default:
      return "stretched";
  }
}

Array::Array(DType dtype, const Shape& shape, Layout layout) {
  Shape order = shape;  // in memory order
  int last = shape.rank - 1;
  if (layout == Layout::swapped && shape.rank >= 2) std::swap(order[last], order[last - 1]);
  if (layout == Layout::heads && shape.rank == 4) std::swap(order[1], order[2]);
  int repeated = -1;
  for (int dim = 0; layout == Layout::broadcast && dim < shape.rank && repeated < 0; dim++)
    if (shape[dim] > 1) repeated = dim;
  view_ = dense(dtype, shape, nullptr);
  int64_t stride = layout == Layout::gaps ? 2 : 1;
  for (int dim = last; dim >= 0; dim--) {
    view_.strides[dim] = dim == repeated ? 0 : stride;
    if (dim != repeated) stride *= std::max<int64_t>(order[dim], 1);
    if (dim == last && layout == Layout::rows) stride += 3;
  }
  if (layout == Layout::swapped && shape.rank >= 2)
    std::swap(view_.strides[last], view_.strides[last - 1]);
  if (layout == Layout::heads && shape.rank == 4) std::swap(view_.strides[1], view_.strides[2]);
  // Ends at the last byte of the last element.
  int64_t reach = 1;
  for (int dim = 0; dim < shape.rank; dim++)
    reach += (std::max<int64_t>(shape[dim], 1) - 1) * view_.strides[dim];
  if (shape.count() == 0) reach = 0;
  auto size = dtype_size(dtype);
  size_t before = layout == Layout::shifted ? size : 0;
  bytes_ = before + static_cast<size_t>(reach) * size;
  memory_.reset(new char[bytes_]);
  std::memset(memory_.get(), kPoison, bytes_);
  view_.data = memory_.get() + before;
  if (layout == Layout::backwards && last >= 0 && shape.count() > 0) {
    view_.data += (shape[last] - 1) * view_.strides[last] * static_cast<int64_t>(size);
    view_.strides[last] = -view_.strides[last];
  }
  places_.reserve(static_cast<size_t>(count()));
  int64_t index[kRankMax] = {};
  for (int64_t i = 0; i < count(); i++) {
    int64_t offset = 0;
    for (int dim = 0; dim <= last; dim++) offset += index[dim] * view_.strides[dim];
    places_.push_back(
        static_cast<size_t>(view_.data - memory_.get() + offset * static_cast<int64_t>(size)));
    for (int dim = last; dim >= 0 && ++index[dim] == shape[dim]; dim--) index[dim] = 0;
  }
}

double Array::at(int64_t i) const {
  return visit(view_.dtype, [&](auto type) {
    std::memcpy(&type, memory_.get() + place(i), sizeof type);
    return convert<double>(type);
  });
}
int64_t Array::integer_at(int64_t i) const {
  return visit(view_.dtype, [&](auto type) {
    std::memcpy(&type, memory_.get() + place(i), sizeof type);
    return convert<int64_t>(type);
  });
}
void Array::set(int64_t i, double value) {
  visit(view_.dtype, [&](auto type) {
    type = convert<decltype(type)>(value);
    std::memcpy(memory_.get() + place(i), &type, sizeof type);
  });
}
void Array::set_integer(int64_t i, int64_t value) {
  visit(view_.dtype, [&](auto type) {
    type = convert<decltype(type)>(value);
    std::memcpy(memory_.get() + place(i), &type, sizeof type);
  });
}
std::vector<double> Array::values() const {
  std::vector<double> out(static_cast<size_t>(count()));
  for (int64_t i = 0; i < count(); i++) out[static_cast<size_t>(i)] = at(i);
  return out;
}

// Runs twice, each time with scratch of exactly the requested size.
std::string HostRunner::run(const std::vector<Array*>& operands, const Call& call) {
  std::vector<View> views;
  std::vector<std::vector<char>> before, first;
  for (Array* each : operands) {
    views.push_back(each ? each->view() : View{});
    if (each) before.emplace_back(each->memory(), each->memory() + each->bytes());
  }
  for (int time = 0; time < 2; time++) {
    reverse_(time == 1);
    size_t at = 0;
    for (Array* each : operands)
      if (each) std::copy(before[at].begin(), before[at].end(), each->memory()), at++;
    Stream stream;
    stream.threads = 2;
    fault = 0;
    stream.fault = &fault;
    int code = call(table_, stream, views.data());
    std::unique_ptr<char[]> scratch;
    if (code == kNeedsScratch) {
      at = 0;
      for (Array* each : operands)
        if (each && !std::equal(before[at].begin(), before[at].end(), each->memory()))
          return "something was done without scratch";
        else if (each)
          at++;
      size_t bytes = stream.scratch.needed;
      scratch.reset(new char[bytes + 256]);
      std::memset(scratch.get(), 0xff, bytes + 256);
      auto start = reinterpret_cast<uintptr_t>(scratch.get());
      // Ends at the end of the allocation, for AddressSanitizer; blocks are aligned to 256.
      stream.scratch = {scratch.get() + (256 - start % 256) % 256, bytes, 0, 0};
      code = call(table_, stream, views.data());
    }
    reverse_(false);
    if (code != kDone)
      return "error " + std::to_string(code) +
             (code == kNeedsScratch || code == kUnsupported
                  ? ""
                  : std::string(": ") + table_.error_text(code));
    at = 0;
    for (Array* each : operands) {
      if (!each) continue;
      std::vector<char> now(each->memory(), each->memory() + each->bytes());
      if (time == 1 && now != first[at]) return "other bits the second time";
      if (time == 0) first.push_back(std::move(now));
      at++;
    }
  }
  return "";
}

void Suite::miss(const std::string& row, const std::string& text) {
  lines[row].misses++;
  if (misses.size() < 20)
    misses.push_back(row + ": " + text + " (FLOW_TEST_SEED=" + std::to_string(seed) + ")");
}

double Suite::uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
}
int64_t Suite::integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

void Suite::fill(Array& array, double low, double high) {
  for (int64_t i = 0; i < array.count(); i++) {
    if (is_float(array.dtype()))
      array.set(i, uniform(low, high));
    else if (array.dtype() == DType::boolean)
      array.set_integer(i, integer(0, 1));
    else
      array.set_integer(i, integer(array.dtype() == DType::u8 ? 0 : -20, 20));
  }
}
Array Suite::filled(DType dtype, const Shape& shape, Layout layout, double low, double high) {
  Array array(dtype, shape, layout);
  fill(array, low, high);
  return array;
}

namespace {

std::string text_of(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// The check's text without its sizes, except for the width of heads, which chooses a kernel.
std::string kind_of(const std::string& row, const std::string& what) {
  static const std::regex shapes(R"(\[[^\]]*\]|\b[0-9]+)"), last_size(R"(\[[^\]]*\b([0-9]+)\])");
  std::string kind = row + " " + std::regex_replace(what, shapes, "");
  std::smatch width;
  if (row.starts_with("attention") && std::regex_search(what, width, last_size))
    kind += width.str(1);
  return kind;
}

}  // namespace

void Suite::compare(const std::string& row, const std::string& what,
                    const std::vector<Array*>& operands, const Call& call,
                    const std::vector<Expect>& expects) {
  if (most_of_a_kind > 0 && kinds_[kind_of(row, what)]++ >= most_of_a_kind) return;
  Line& line = lines[row];
  line.checks++;
  std::map<const Array*, std::vector<char>> before;
  for (Array* each : operands)
    if (each) before[each] = {each->memory(), each->memory() + each->bytes()};
  std::string error = runner.run(operands, call);
  if (!error.empty()) return miss(row, what + ": " + error);
  for (const auto& [array, bytes] : before) {
    const Expect* expect = nullptr;
    for (const Expect& each : expects)
      if (each.array == array) expect = &each;
    std::vector<bool> is_element(bytes.size());
    for (int64_t i = 0; expect && i < array->count(); i++)
      std::fill_n(is_element.begin() + static_cast<int64_t>(array->place(i)),
                  dtype_size(array->dtype()), true);
    for (size_t i = 0; i < bytes.size(); i++)
      if (!is_element[i] && array->memory()[i] != bytes[i])
        return miss(row, what + ": a byte was written that is no result's");
  }
  for (const Expect& expect : expects) {
    const Array& out = *expect.array;
    for (int64_t i = 0; i < out.count(); i++) {
      auto at = static_cast<size_t>(i);
      auto wrong = [&](const std::string& is, const std::string& should) {
        miss(row, what + ": element " + std::to_string(i) + " of " + text_of(out.shape()) + " " +
                      dtype_name(out.dtype()) + " is " + is + ", not " + should);
      };
      if (!expect.integer.empty() || !is_float(out.dtype())) {
        int64_t should =
            expect.integer.empty() ? static_cast<int64_t>(expect.real[at]) : expect.integer[at];
        if (out.integer_at(i) != should)
          return wrong(std::to_string(out.integer_at(i)), std::to_string(should));
        continue;
      }
      double should = expect.real[at], is = out.at(i);
      auto report = [&] { return wrong(text_of(is), text_of(should)); };
      if (std::isnan(should) || std::isnan(is)) {
        if (std::isnan(should) != std::isnan(is)) return report();
        continue;
      }
      double nearest = rounded(out.dtype(), should);
      if (is == nearest) continue;
      if (std::isinf(is) || std::isinf(nearest)) return report();
      double size = std::max(std::fabs(should), expect.scale);
      double allowed = (unit_of(out.dtype()) * 1.01 * expect.roundings +
                        expect.slack * unit_of(compute_type(out.dtype()))) *
                           size +
                       tiny_of(out.dtype());
      double difference = std::fabs(is - should);
      line.worst = std::max(line.worst, difference / allowed);
      if (size > 0) line.worst_error = std::max(line.worst_error, difference / size);
      if (difference > allowed) return report();
    }
  }
}

uint64_t test_seed() {
  if (const char* text = std::getenv("FLOW_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

}  // namespace flow::suite
