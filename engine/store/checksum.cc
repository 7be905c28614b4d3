// Uses the processor's CRC instruction if it has one; else tables of the reflected polynomial
// 0x82f63b78, eight bytes at a time.
#include "engine/store/checksum.hpp"

#include <array>
#include <cstring>

namespace flow {

namespace {

constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    tables[0][i] = crc;
  }
  for (size_t t = 1; t < 8; t++) {
    for (size_t i = 0; i < 256; i++)
      tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
  }
  return tables;
}

constexpr auto kTables = make_tables();

uint32_t by_tables(uint32_t crc, const uint8_t* p, size_t left) {
  for (; left >= 8; left -= 8, p += 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^
          kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; left > 0; left--, p++) crc = crc >> 8 ^ kTables[0][(crc ^ *p) & 0xff];
  return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const uint8_t* p,
                                                          size_t left) {
  uint64_t wide = crc;
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; left > 0; left--, p++) crc = __builtin_ia32_crc32qi(crc, *p);
  return crc;
}
#endif

}  // namespace

uint32_t crc32c(std::string_view data, uint32_t before) {
  const auto* p = reinterpret_cast<const uint8_t*>(data.data());
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~by_instruction(~before, p, data.size());
#endif
  return ~by_tables(~before, p, data.size());
}

void seal(std::string& bytes, uint32_t before) {
  uint32_t crc = crc32c(bytes, before);
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
}

bool unseal(std::string_view bytes, std::string_view& content) {
  uint32_t stored = 0;
  if (bytes.size() < sizeof stored) return false;
  content = bytes.substr(0, bytes.size() - sizeof stored);
  std::memcpy(&stored, bytes.data() + content.size(), sizeof stored);
  return crc32c(content) == stored;
}

}  // namespace flow
