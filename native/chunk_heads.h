// The heads of a frame's chunks as they travel: MessagePack, an array of arrays of eight unsigned integers.
//
// What is read here may have been written by anybody.
#pragma once

#include <cstring>
#include <unordered_map>
#include <vector>

#include "chunks.h"

namespace apexrl {

class ChunkHeads {
 public:
  std::vector<ChunkHead> heads;

  uint64_t items(size_t from = 0) const {
    uint64_t sum = 0;
    for (size_t i = from; i < heads.size(); ++i) sum += heads[i].items;
    return sum;
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const ChunkHead& head : heads) sum += head.bytes;
    return sum;
  }

  // The sources in order of their first chunk, and for each chunk the place of its own among them.
  const std::vector<uint64_t>& sources() const {
    if (places_.size() == heads.size()) return sources_;
    sources_.clear(), places_.clear();
    places_.reserve(heads.size());
    std::unordered_map<uint64_t, uint32_t> known;
    for (const ChunkHead& head : heads) {
      const auto [at, fresh] = known.try_emplace(head.source, uint32_t(sources_.size()));
      if (fresh) sources_.push_back(head.source);
      places_.push_back(at->second);
    }
    return sources_;
  }
  const std::vector<uint32_t>& places() const { return sources(), places_; }

  std::vector<uint8_t> packed() const {
    std::vector<uint8_t> out;
    out.reserve(3 + 32 * heads.size());
    if (heads.size() < 16) {
      out.push_back(uint8_t(0x90 | heads.size()));
    } else {
      out.push_back(0xdd);
      put(out, heads.size(), 4);
    }
    for (const ChunkHead& h : heads) {
      out.push_back(0x98);
      for (const uint64_t value : {h.source, h.slot_generation, uint64_t(h.first), uint64_t(h.positions), uint64_t(h.rows),
                                   uint64_t(h.cells), uint64_t(h.items), h.bytes}) {
        if (value < 0x80) {
          out.push_back(uint8_t(value));
        } else {
          const int power = value < 1u << 8 ? 0 : value < 1u << 16 ? 1 : value < uint64_t(1) << 32 ? 2 : 3;
          out.push_back(uint8_t(0xcc + power));
          put(out, value, 1 << power);
        }
      }
    }
    return out;
  }

  // False: it is anything else than what packed() answers of 1 to kMostChunks heads with numbers in range.
  bool unpack(const uint8_t* data, size_t size) {
    Reader in{data, data + size};
    heads.clear();
    uint64_t count = in.byte();
    if (count >= 0x91 && count <= 0x9f) {
      count &= 15;
    } else if (count == 0xdc) {
      count = in.number(2);
    } else if (count == 0xdd) {
      count = in.number(4);
    } else {
      return false;
    }
    if (count == 0 || count > kMostChunks) return false;
    heads.reserve(count);
    for (; count > 0; --count) {
      if (in.byte() != 0x98) return false;
      uint64_t v[8];
      for (uint64_t& value : v) value = in.integer();
      if (in.failed || v[0] > kMostSource || v[1] > kMostSource || v[7] >= kMostBytes) return false;
      for (int i = 2; i < 7; ++i)
        if (v[i] > 0x7fffffff) return false;
      heads.push_back({v[0], v[1], uint32_t(v[2]), uint32_t(v[3]), uint32_t(v[4]), uint32_t(v[5]), uint32_t(v[6]), v[7]});
    }
    return !in.failed && in.at == in.end;
  }

 private:
  static constexpr uint64_t kMostSource = uint64_t(1) << 53;
  static constexpr uint64_t kMostBytes = uint64_t(1) << 48;  // of a body; sums of kMostChunks stay far below 2^64

  struct Reader {
    const uint8_t* at;
    const uint8_t* end;
    bool failed = false;

    uint64_t number(size_t bytes) {
      if (size_t(end - at) < bytes) {
        failed = true;
        return 0;
      }
      uint64_t value = 0;
      for (; bytes > 0; --bytes) value = value << 8 | *at++;
      return value;
    }
    uint64_t byte() { return number(1); }
    uint64_t integer() {
      const uint64_t first = byte();
      if (first < 0x80) return first;
      if (first >= 0xcc && first <= 0xcf) return number(size_t(1) << (first - 0xcc));
      failed = true;
      return 0;
    }
  };

  static void put(std::vector<uint8_t>& out, uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) out.push_back(uint8_t(value >> (8 * i)));
  }

  mutable std::vector<uint64_t> sources_;  // once asked for
  mutable std::vector<uint32_t> places_;
};

}  // namespace apexrl
